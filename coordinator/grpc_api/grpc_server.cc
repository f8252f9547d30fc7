// SPDX-License-Identifier: Apache-2.0
#include "coordinator/grpc_api/grpc_server.h"

#include <grpcpp/grpcpp.h>

#include "common/base/status.h"
#include "coordinator/api/api_key.h"
#include "coordinator/grpc_api/generate_reactor.h"
#include "proto/generation.grpc.pb.h"

namespace kt::grpc_api {
namespace {

class GenerationCallbackService : public api::Generation::CallbackService {
 public:
  GenerationCallbackService(const GrpcServerOptions& options, api::GenerationService* service,
                            std::shared_ptr<EventQueue> events)
      : api_key_(options.api_key),
        buffer_bytes_max_(options.stream_buffer_bytes_max),
        service_(service),
        events_(std::move(events)) {}

  grpc::ServerWriteReactor<api::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const api::GenerateRequest* request) override {
    if (grpc::Status status = Authorize(*context); !status.ok()) return new RefusingReactor(status);
    auto reactor = std::make_shared<GenerateReactor>(service_, events_, buffer_bytes_max_);
    reactor->Start(*request);
    return reactor.get();
  }

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const api::ListModelsRequest*,
                                       api::ListModelsReply* reply) override {
    grpc::Status status = Authorize(*context);
    if (status.ok()) {
      reply->add_ids(service_->facts().name);
      reply->set_context_length(service_->facts().context_length);
    }
    auto* reactor = context->DefaultReactor();
    reactor->Finish(status);
    return reactor;
  }

 private:
  class RefusingReactor : public grpc::ServerWriteReactor<api::GenerateEvent> {
   public:
    explicit RefusingReactor(const grpc::Status& status) { Finish(status); }
    void OnDone() override { delete this; }
  };

  grpc::Status Authorize(const grpc::CallbackServerContext& context) const {
    if (api_key_.empty()) return grpc::Status::OK;
    auto it = context.client_metadata().find("authorization");
    const std::string given = it == context.client_metadata().end()
                                  ? ""
                                  : std::string(it->second.data(), it->second.size());
    if (api::BearerMatches(given, api_key_)) return grpc::Status::OK;
    return grpc::Status(
        grpc::StatusCode::UNAUTHENTICATED,
        "the API key is missing or wrong; send it as metadata \"authorization: Bearer KEY\"");
  }

  const std::string api_key_;
  const int64_t buffer_bytes_max_;
  api::GenerationService* const service_;
  const std::shared_ptr<EventQueue> events_;
};

}  // namespace

// Destroyed from the bottom up: the server first, which ends every call; then the thread has run
// what they posted.
struct GrpcServer::Impl {
  Impl(const GrpcServerOptions& options, api::GenerationService* generation)
      : service(options, generation, thread.queue()) {}
  EventThread thread;
  GenerationCallbackService service;
  std::vector<int> ports;
  std::unique_ptr<grpc::Server> server;
};

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                              api::GenerationService* service) {
  auto impl = std::make_unique<Impl>(options, service);
  grpc::ServerBuilder builder;
  impl->ports.resize(options.addresses.size());
  for (size_t i = 0; i < options.addresses.size(); ++i) {
    builder.AddListeningPort(options.addresses[i], grpc::InsecureServerCredentials(),
                             &impl->ports[i]);
  }
  builder.SetMaxReceiveMessageSize(options.message_bytes_max);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.concurrent_calls_max);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(&impl->service);
  impl->server = builder.BuildAndStart();
  for (size_t i = 0; i < options.addresses.size(); ++i) {
    if (impl->server == nullptr || impl->ports[i] == 0) {
      return AlreadyExists("gRPC address {} cannot be served: it is in use or none of this machine",
                           options.addresses[i]);
    }
    if (options.addresses[i].starts_with("unix:")) impl->ports[i] = 0;
  }
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

int GrpcServer::port(size_t index) const { return impl_->ports[index]; }

void GrpcServer::Drain(std::chrono::milliseconds timeout) {
  impl_->server->Shutdown(std::chrono::system_clock::now() + timeout);
}

GrpcServer::~GrpcServer() { impl_->server->Shutdown(std::chrono::system_clock::now()); }

}  // namespace kt::grpc_api
