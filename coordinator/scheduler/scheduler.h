// SPDX-License-Identifier: Apache-2.0
// Decides which tokens run in which step. A plain state machine: events in, step plans and
// generation events out; no thread, lock or clock inside, the same calls give the same answers.
//
// Order        first come, first served, by sequence (a request has n). Sequences run, wait, or
// have ended; only running ones hold blocks. A step       decode tokens of every running sequence,
// and prefill chunks within one token budget; with mixed chunks off
//              decode and prefill steps alternate while there is work for both.
// Blocks       allocated as positions are computed, shared by the choices of a request, copied on
// write. When they run out the
//              youngest running sequence gives all of its back and waits; later it is computed
//              again from prompt and output. The oldest is never pushed out and fits alone, so
//              there is always progress.
// States       models with layers of fixed-size state have slots beside blocks. Every running
// sequence is promised two: a step reads one and writes the other, which takes its place when the
// step has succeeded. A state cannot be cut back, so the first choice of several stops one token
// before the end of the prompt and that state is kept for those that wait to run while a choice
// runs and a slot is to spare; else they compute the prompt for themselves. Admission waits for
// slots.
// Prefixes     blocks stay known by their tokens once they are computed (PrefixCache): running
// sequences find those of others, later requests and sequences that were pushed out start behind
// them. Blocks that only the cache keeps count as available and go before any sequence is pushed
// out. States are kept with it at the end of a sequence, of its prompt and of chunks.
// Replays      draws are keyed by (seed, choice, position): computing again never changes tokens
// that were sent. Lost steps   a step that fails or is lost with its workers costs time only: its
// sequences wait and are computed again. A request
//              that gets nowhere in lost_steps_max steps fails, and has its last try alone, so that
//              it takes no other with it.
#ifndef KT_COORDINATOR_SCHEDULER_SCHEDULER_H_
#define KT_COORDINATOR_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/sim/clock.h"
#include "coordinator/generation/generation.h"
#include "coordinator/scheduler/block_pool.h"
#include "coordinator/scheduler/layerwise_threshold.h"
#include "coordinator/scheduler/live_placement.h"
#include "coordinator/scheduler/prefix_cache.h"
#include "coordinator/scheduler/sequence.h"
#include "coordinator/scheduler/state_pool.h"
#include "coordinator/tokenizer/tokenizer.h"
#include "proto/config.pb.h"
#include "proto/step.pb.h"

namespace kt {

struct SchedulerConfig {
  proto::SchedulerOptions options;  // chunked_prefill_size and max_prefill_tokens: -1 is no limit
  Duration queue_timeout = std::chrono::minutes(
      10);  // of a request that waits to be admitted, also after workers were lost
  LivePlacement placement;
  std::vector<int32_t> eos_token_ids;  // end tokens of the model
  int state_slots = 0;                 // of the workers, at least 2; 0: a model without state
  int lost_steps_max = 3;
  Duration step_retry_delay =
      std::chrono::milliseconds(100);  // after a failed step, so that a loss can be reported first
};

// Counters since start; the first group is of now.
struct SchedulerStats {
  int requests_live = 0;    // ended ones included until their step in flight returns
  int requests_queued = 0;  // never admitted so far
  int sequences_running = 0;
  int sequences_waiting = 0;  // queued, preempted or waiting for workers
  int blocks_total = 0;
  int blocks_used = 0;
  int blocks_cached = 0;  // kept by the prefix cache alone
  int states_cached = 0;  // state slots that it keeps
  int block_tokens = 0;

  uint64_t requests_accepted = 0;
  uint64_t requests_finished = 0;
  uint64_t requests_failed = 0;
  uint64_t requests_cancelled = 0;
  uint64_t requests_refused = 0;
  uint64_t prompt_tokens = 0;      // of admitted requests
  uint64_t tokens_cached = 0;      // of these, found in the prefix cache
  uint64_t tokens_prefilled = 0;   // prompt tokens and tokens computed again
  uint64_t tokens_recomputed = 0;  // of these, computed before
  uint64_t tokens_generated = 0;
  uint64_t preemptions = 0;
  uint64_t steps = 0;
  uint64_t steps_lost = 0;
  uint64_t steps_layerwise = 0;
  uint64_t residents_changed = 0;  // experts that have become resident
  int layerwise_threshold = 0;     // LayerwiseThreshold::threshold
  std::string layerwise_evidence;  // what auto goes by
  double step_seconds = 0;         // from plan to result, all steps
  proto::StepTimings timings;      // sums of what the workers report
};

// Share of the prompt tokens found in the prefix cache, 0 to 1.
inline double CacheHitRate(const SchedulerStats& stats) {
  return stats.prompt_tokens == 0 ? 0
                                  : static_cast<double>(stats.tokens_cached) / stats.prompt_tokens;
}

// One thread.
class Scheduler {
 public:
  // InvalidArgument: an option out of range. `tokenizer` outlives the scheduler.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(SchedulerConfig config,
                                                           const Tokenizer* tokenizer);

  // Events
  // -------------------------------------------------------------------------------------------------------------------
  // As Generator::Submit, and AlreadyExists: a live request has the same id.
  absl::Status Add(GenerationRequest request, std::shared_ptr<GenerationSink> sink, TimePoint now);
  // Nothing happens when there is no such request. The sink is let go at once, blocks in use when
  // the step in flight returns.
  void Cancel(const std::string& request_id);
  // An answer to another step than the one in flight is late, and ignored. One that does not fit
  // its plan is a failed step.
  void OnStepResult(const proto::StepResult& result, TimePoint now);
  // New workers with empty caches; also while others were ready. Both numbers >= 1.
  void OnWorkersReady(int kv_blocks, int step_tokens_max, TimePoint now);
  // What layerwise steps of these workers cost; before OnWorkersReady.
  void OnLayerwiseCosts(const LayerwiseCosts& costs) { threshold_.SetCosts(costs); }
  void OnWorkersLost(std::string_view reason, TimePoint now);
  void OnTimer(TimePoint now);
  void Drain() { draining_ = true; }        // accepts nothing more, finishes what it has
  void FailAll(const absl::Status& error);  // ends every request
  void FlushCache() { cache_.Flush(); }     // forgets what no running sequence holds

  // Actions
  // ------------------------------------------------------------------------------------------------------------------
  // To be called after every event until it gives nothing. At most one step is in flight today.
  std::optional<proto::StepPlan> NextStep(TimePoint now);
  // When OnTimer and NextStep are to be called at the latest.
  std::optional<TimePoint> NextTimer() const;

  bool idle() const { return requests_.empty(); }
  SchedulerStats stats() const;
  // Internal: a block or slot is not accounted for. For tests and diagnosis.
  absl::Status Audit() const;
  const BlockPool& pool() const { return pool_; }
  const StatePool& states() const { return states_; }
  const PrefixCache& cache() const { return cache_; }

 private:
  struct Planned {
    Sequence* sequence;
    int begin, end;
    bool samples;
    int targets;
    bool logprobs;
  };
  struct Flight {
    uint64_t step_id;
    TimePoint sent;
    std::vector<Planned> planned;
    int rows = 0;
    bool layerwise = false;
  };

  Scheduler(SchedulerConfig config, const Tokenizer* tokenizer);

  // Requests (scheduler.cc)
  absl::Status CheckFits(const GenerationRequest& request) const;
  absl::Status CheckAcceptable(const GenerationRequest& request) const;
  void SetDeadline(Request& request, std::optional<TimePoint> deadline);
  void EndRequest(Request& request, const absl::Status& status);
  void FinishSequence(Sequence& sequence);
  void Send(Sequence& sequence);
  void Land(Sequence& sequence);
  void LoseStep(const absl::Status& why);
  void Apply(const Planned& planned, const proto::SequenceResult& result);
  void AdvanceState(Sequence& sequence);
  void ReleaseCache(Sequence& sequence);

  // Prefix cache (scheduler_cache.cc)
  bool caches() const { return config_.options.prefix_cache(); }
  CachedPrefix FindCached(const Sequence& sequence, int limit) const;
  void Adopt(Sequence& sequence, const CachedPrefix& prefix);
  void AdoptFromRunning();
  void CacheComputed(Sequence& sequence);
  void CacheTail(const Sequence& sequence);
  void CacheState(Sequence& sequence);
  int PromptBoundary(const Sequence& sequence) const;
  int EndWithState(const Sequence& sequence, int begin, int end) const;

  // Planning (scheduler_plan.cc)
  void Admit();
  void Start(Sequence& sequence, Sequence* donor, const CachedPrefix& prefix);
  Sequence* Donor(const Sequence& sequence);
  bool has_state() const { return config_.state_slots > 0; }
  int StateRoom() const;
  int ForkPosition(const Sequence& sequence) const;
  bool CanFork(const Request& request) const;
  bool AwaitsPromptState(const Request& request) const;
  void DropPromptState(Request& request);
  void Preempt(Sequence& sequence);
  void RequeueAll();
  int PlanSequence(Sequence& sequence, int budget, proto::StepPlan* plan, Flight* flight);
  const Request* Suspect() const;
  void FillPlan(proto::StepPlan* plan, Flight* flight);

  const SchedulerConfig config_;
  const Tokenizer* const tokenizer_;

  bool ready_ = false;
  bool was_ready_ = false;
  bool draining_ = false;
  bool last_was_prefill_ = false;
  int step_tokens_max_ = 0;
  LayerwiseThreshold threshold_;
  LivePlacement placement_;
  BlockPool pool_;
  StatePool states_;
  PrefixCache cache_;                                      // empty where it is off
  int prompt_states_ = 0;                                  // requests that keep one
  std::map<uint64_t, std::unique_ptr<Request>> requests_;  // by first sequence id
  std::unordered_map<std::string, Request*> by_id_;        // live ones
  std::map<uint64_t, Sequence*> running_;                  // by sequence id: order of arrival
  std::map<uint64_t, Sequence*> waiting_;
  std::set<std::pair<TimePoint, uint64_t>> deadlines_;  // with the key of requests_
  int queued_ = 0;
  std::optional<Flight> flight_;
  std::optional<TimePoint> retry_at_;
  uint64_t next_sequence_id_ = 1;
  uint64_t next_step_id_ = 1;
  SchedulerStats stats_;
};

}  // namespace kt

#endif  // KT_COORDINATOR_SCHEDULER_SCHEDULER_H_
