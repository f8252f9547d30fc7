// SPDX-License-Identifier: Apache-2.0
// The runtime's metrics: one object, built in main and passed down; the text of GET /metrics.
//
// Threads  every method is thread-safe and never blocks longer than a short lock
// Units    as in the metric's name; GET /metrics carries a help line for each
#ifndef KT_COMMON_OBSERVE_METRICS_H_
#define KT_COMMON_OBSERVE_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kt::metrics {

// A snapshot of the scheduler, set once a step.
struct SchedulerFigures {
  int running_requests = 0;
  int queued_requests = 0;
  int used_tokens = 0;       // tokens with a cache slot
  int max_total_tokens = 0;  // cache slots
  int kv_blocks_used = 0;
  int kv_blocks_total = 0;
  int kv_blocks_cached = 0;  // kept by the prefix cache alone
  int cached_states = 0;     // state slots that it keeps
  double generation_tokens_per_second = 0;
  double cache_hit_rate = 0;   // 0..1, since the start
  uint64_t cached_tokens = 0;  // prompt tokens found in the prefix cache, since the start
  int retracted_requests = 0;  // preempted and waiting to run again
};

// Where experts were read and copied since the start.
struct ExpertFigures {
  uint64_t resident_bytes = 0;  // read on the device, where they are resident
  uint64_t worker_bytes = 0;    // of the CPU workers' experts: read by them, or on the device after
                                // a copy
  uint64_t copied_bytes = 0;    // to the device
  double copy_seconds = 0;
  double copy_stall_seconds = 0;  // the device waited for copies
  uint64_t staged_copies = 0;     // that went through other host memory
  uint64_t layerwise_steps = 0;
  int layerwise_threshold = 0;  // rows; above any step: none is layerwise
  uint64_t residents_changed = 0;
};

// One worker process. Rows are kept by name; a row of the same name replaces the former.
struct WorkerFigures {
  std::string name;  // "gpu-0", "expert-1"
  int numa_node = -1;
  int threads = 0;
  bool up = false;
  uint64_t restarts = 0;
};

class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Front ends.
  void RequestStarted();
  void RequestEnded(double seconds, bool aborted);
  void ClientDisconnected();
  void ConnectionOpened();
  void ConnectionClosed();
  void AddPromptTokens(int64_t tokens);
  void AddGenerationTokens(int64_t tokens);
  // Choices of routed experts that live on the device, and of others.
  void AddExpertChoices(uint64_t hits, uint64_t misses);
  void ObserveTimeToFirstToken(double seconds);
  void ObserveInterTokenLatency(double seconds);

  // Scheduler, workers, supervision.
  void SetScheduler(const SchedulerFigures& figures);
  void SetExperts(const ExpertFigures& figures);
  void SetWorker(const WorkerFigures& worker);
  void SetDegraded(bool degraded);
  void SetThrottledPeriods(int64_t periods);
  void SetWarnings(const std::vector<std::string>& warnings);  // replaces the former ones
  // Share of the last steps spent waiting on the hand-over to the expert workers, 0..1.
  void SetExpertWaitShare(double share);

  // Prometheus text format.
  std::string Serialize() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kt::metrics

#endif  // KT_COMMON_OBSERVE_METRICS_H_
