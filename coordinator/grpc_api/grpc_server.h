// SPDX-License-Identifier: Apache-2.0
// The public gRPC API (proto/generation.proto) over the same calls as HTTP: same checks, same
// messages.
#ifndef KT_COORDINATOR_GRPC_API_GRPC_SERVER_H_
#define KT_COORDINATOR_GRPC_API_GRPC_SERVER_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/api/generation_service.h"

namespace kt::grpc_api {

struct GrpcServerOptions {
  std::vector<std::string> addresses;  // "unix:/path" or "host:port"; port 0: any free one
  std::string api_key;  // expected as metadata "authorization: Bearer KEY"; empty: open
  int message_bytes_max = 32 << 20;  // of one request
  int concurrent_calls_max = 4096;   // of one connection
  int64_t stream_buffer_bytes_max = 8
                                    << 20;  // unsent events of a slow reader; above: its call ends
};

class GrpcServer {
 public:
  // `service` outlives the server. AlreadyExists: an address is in use.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                           api::GenerationService* service);
  // Cancels what still runs.
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  // Port of addresses[index]; 0 for a Unix socket.
  int port(size_t index) const;

  // Takes no new calls, lets the others finish until the timeout, then cancels them. At most once.
  void Drain(std::chrono::milliseconds timeout);

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kt::grpc_api

#endif  // KT_COORDINATOR_GRPC_API_GRPC_SERVER_H_
