// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/server_runner.h"

#include <grpc/grpc.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>

#include "common/base/status.h"

namespace kt {
namespace {

// Holds the library until the process ends: its own shutdown, which comes with the last server or
// channel, can wait ten seconds for a poller of a channel that is gone.
void KeepLibrary() { [[maybe_unused]] static const bool kept = (grpc_init(), true); }

}  // namespace

absl::StatusOr<std::unique_ptr<ServerRunner>> ServerRunner::Start(
    const std::string& address, const std::vector<grpc::Service*>& services) {
  KeepLibrary();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int bound = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &bound);
  builder.SetMaxReceiveMessageSize(kInternalMessageBytesMax);
  builder.SetMaxSendMessageSize(kInternalMessageBytesMax);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || bound == 0) return Unavailable("server: {} cannot be bound", address);
  return std::unique_ptr<ServerRunner>(new ServerRunner(std::move(server)));
}

ServerRunner::~ServerRunner() {
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
}

std::shared_ptr<grpc::Channel> InternalChannel(const std::string& address) {
  KeepLibrary();
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kInternalMessageBytesMax);
  args.SetMaxSendMessageSize(kInternalMessageBytesMax);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

}  // namespace kt
