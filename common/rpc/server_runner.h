// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_RPC_SERVER_RUNNER_H_
#define KT_COMMON_RPC_SERVER_RUNNER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kt {

// Largest message between processes: captures of whole chunks are the biggest.
inline constexpr int kInternalMessageBytesMax = 1 << 30;

// A gRPC server on a Unix socket, with grpc.health.v1. Stops (cancelling open calls after a second)
// when destroyed.
class ServerRunner {
 public:
  // `address`: unix:/path. Unavailable: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<ServerRunner>> Start(
      const std::string& address, const std::vector<grpc::Service*>& services);
  ~ServerRunner();

 private:
  explicit ServerRunner(std::unique_ptr<grpc::Server> server) : server_(std::move(server)) {}
  std::unique_ptr<grpc::Server> server_;
};

// A channel to another process of the same system.
std::shared_ptr<grpc::Channel> InternalChannel(const std::string& address);

}  // namespace kt

#endif  // KT_COMMON_RPC_SERVER_RUNNER_H_
