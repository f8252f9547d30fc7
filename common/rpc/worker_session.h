// SPDX-License-Identifier: Apache-2.0
// A worker's life with the coordinator: register, report progress, report ready, heartbeat until
// one of the two is gone.
#ifndef KT_COMMON_RPC_WORKER_SESSION_H_
#define KT_COMMON_RPC_WORKER_SESSION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "proto/coordinator.grpc.pb.h"

namespace kt {

// Thread-safe.
class WorkerSession {
 public:
  struct Identity {
    proto::WorkerKind kind;
    int index;
    std::string address;  // this worker's own gRPC target
    std::string isa;
  };
  // Registers within `timeout_ms` (the coordinator may still be starting), or until `stop`
  // becomes true (Cancelled). `on_lost` is called
  // once, on another thread, when the coordinator has gone or has replaced this worker.
  static absl::StatusOr<std::unique_ptr<WorkerSession>> Register(
      const std::string& coordinator_address, const Identity& identity, int timeout_ms,
      const std::atomic<bool>& stop, std::function<void()> on_lost);
  ~WorkerSession();

  const proto::RuntimeConfig& config() const { return config_; }
  uint64_t incarnation() const { return incarnation_; }

  void ReportProgress(uint64_t bytes_loaded, uint64_t bytes_total);
  void ReportReady(const proto::WorkerFacts& facts);
  // The coordinator shows the message; the caller exits.
  void ReportFailed(const std::string& error);

 private:
  WorkerSession() = default;
  void Run();

  Identity identity_;
  uint64_t incarnation_ = 0;
  proto::RuntimeConfig config_;
  std::unique_ptr<proto::Coordinator::Stub> stub_;
  std::function<void()> on_lost_;

  struct State;
  std::unique_ptr<State> state_;
  std::thread thread_;
};

}  // namespace kt

#endif  // KT_COMMON_RPC_WORKER_SESSION_H_
