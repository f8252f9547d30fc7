// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include <grpcpp/grpcpp.h>

#include <mutex>

#include "common/base/status.h"
#include "proto/generation.grpc.pb.h"

namespace kt::client {
namespace {

absl::Status FromGrpc(const grpc::Status& status) {
  return MakeStatus(static_cast<absl::StatusCode>(status.error_code()), "{}",
                    status.error_message());
}

}  // namespace

struct Cancellation::State {
  std::mutex mutex;
  grpc::ClientContext* context = nullptr;  // of the running call
  bool cancelled = false;
};

Cancellation::Cancellation() : state_(std::make_unique<State>()) {}
Cancellation::~Cancellation() = default;

void Cancellation::Cancel() {
  std::lock_guard lock(state_->mutex);
  state_->cancelled = true;
  if (state_->context != nullptr) state_->context->TryCancel();
}

struct Client::Impl {
  explicit Impl(const ClientOptions& o)
      : options(o),
        channel(grpc::CreateChannel(o.target, grpc::InsecureChannelCredentials())),
        stub(api::Generation::NewStub(channel)) {}

  // A channel that is just starting gets its time; a call on one that has no server does not hang.
  absl::Status Prepare(grpc::ClientContext* context) const {
    if (!channel->WaitForConnected(std::chrono::system_clock::now() + options.connect_timeout)) {
      return Unavailable("{} does not answer; is the server running?", options.target);
    }
    if (!options.api_key.empty())
      context->AddMetadata("authorization", "Bearer " + options.api_key);
    return absl::OkStatus();
  }

  const ClientOptions options;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<api::Generation::Stub> stub;
};

Client::Client(const ClientOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Client::~Client() = default;

absl::Status Client::Generate(const api::GenerateRequest& request,
                              const std::function<bool(const api::GenerateEvent&)>& on_event,
                              Cancellation* cancellation) {
  grpc::ClientContext context;
  KT_RETURN_IF_ERROR(impl_->Prepare(&context));
  if (cancellation != nullptr) {
    std::lock_guard lock(cancellation->state_->mutex);
    if (cancellation->state_->cancelled) return Cancelled("cancelled before the call");
    cancellation->state_->context = &context;
  }
  auto reader = impl_->stub->Generate(&context, request);
  api::GenerateEvent event;
  while (reader->Read(&event)) {
    if (!on_event(event)) {
      context.TryCancel();
      break;
    }
  }
  while (reader->Read(&event)) {  // what was on its way when it was cancelled
  }
  const absl::Status status = FromGrpc(reader->Finish());
  if (cancellation != nullptr) {
    std::lock_guard lock(cancellation->state_->mutex);
    cancellation->state_->context = nullptr;
  }
  return status;
}

absl::StatusOr<api::ListModelsReply> Client::ListModels() {
  grpc::ClientContext context;
  KT_RETURN_IF_ERROR(impl_->Prepare(&context));
  api::ListModelsReply reply;
  absl::Status status = FromGrpc(impl_->stub->ListModels(&context, {}, &reply));
  if (!status.ok()) return status;
  return reply;
}

}  // namespace kt::client
