// SPDX-License-Identifier: Apache-2.0
// Which workers there are and what state they are in: a plain single-threaded state machine. Events
// in, actions out.
//
// The system serves while every expected worker is ready and attached. The set of ready workers has
// a generation that rises with every change; answers that belong to an older one are dropped by the
// caller.
#ifndef KT_COORDINATOR_WORKERS_REGISTRY_H_
#define KT_COORDINATOR_WORKERS_REGISTRY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/json.h"
#include "common/sim/clock.h"
#include "proto/coordinator.pb.h"

namespace kt {

struct HandshakeVersions {
  uint32_t protocol = 0;
  std::string build;
  uint32_t packed_layout = 0;
};

struct RegistryConfig {
  int gpu_workers = 1;
  int expert_workers = 1;
  HandshakeVersions versions;
  uint64_t first_generation = 1;  // above every one of an earlier coordinator of this system
  Duration silence_max =
      std::chrono::seconds(30);  // a ready worker that reports nothing for longer is taken for hung
};

struct WorkerKey {
  proto::WorkerKind kind;
  int index;
  auto operator<=>(const WorkerKey&) const = default;
};
std::string WorkerName(const WorkerKey& key);  // as the node calls the process: "kt-gpu-worker-0"

struct WorkerEndpoint {
  WorkerKey key;
  uint64_t incarnation = 0;
  std::string address;
  std::string isa;
  proto::WorkerFacts facts;
};

// Every worker is ready: connect them, then report OnAttached with the same generation.
struct AttachAction {
  uint64_t generation = 0;
  std::vector<WorkerEndpoint> workers;  // GPU workers, then expert workers, by index
};
// Steps cannot run any more.
struct LostAction {
  std::string reason;
};
// A worker hangs: end its process.
struct KillAction {
  WorkerKey key;
};
using RegistryAction = std::variant<AttachAction, LostAction, KillAction>;

class Registry {
 public:
  explicit Registry(const RegistryConfig& config)
      : config_(config), generation_(config.first_generation - 1) {}

  // FailedPrecondition: a version differs (both values), or an older incarnation than the one
  // known. InvalidArgument: not an expected worker.
  absl::Status OnRegister(const proto::RegisterRequest& request, TimePoint now);
  // FailedPrecondition: not the current incarnation.
  absl::Status OnReport(const proto::WorkerReport& report, TimePoint now);
  void OnGone(WorkerKey key, uint64_t incarnation, const std::string& reason);
  void OnAttached(uint64_t generation);
  void OnAttachFailed(uint64_t generation, const std::string& reason);
  // A step failed on a rank of several, whose collective has ended with it: all are to be attached
  // anew.
  void OnStepFailed(uint64_t generation, const std::string& reason);
  void OnTimer(TimePoint now);  // about every second; tries a failed attachment again

  // What is to be done since the last call.
  std::vector<RegistryAction> TakeActions() { return std::exchange(actions_, {}); }

  bool serving() const { return serving_; }
  bool was_serving() const { return was_serving_; }
  // Of the workers that are ready.
  std::vector<WorkerEndpoint> Ready() const;
  // {"state": "starting|ready|degraded|failed", "progress", "reasons", "workers": [...]}
  Json Health() const;

 private:
  struct Worker {
    uint64_t incarnation = 0;
    std::string address, isa, error;
    int pid = 0;
    proto::WorkerState state =
        proto::WORKER_STATE_UNSPECIFIED;  // unspecified: not registered, or gone
    uint64_t bytes_loaded = 0, bytes_total = 0;
    proto::WorkerFacts facts;
    TimePoint last_report{};
    int losses = 0;
  };
  bool Expected(WorkerKey key) const;
  void AttachIfComplete();
  void Lose(const std::string& reason);

  RegistryConfig config_;
  std::map<WorkerKey, Worker> workers_;
  uint64_t generation_;
  bool attaching_ = false;  // an AttachAction has not been answered yet
  bool serving_ = false, was_serving_ = false;
  std::string last_loss_;
  std::vector<RegistryAction> actions_;
};

}  // namespace kt

#endif  // KT_COORDINATOR_WORKERS_REGISTRY_H_
