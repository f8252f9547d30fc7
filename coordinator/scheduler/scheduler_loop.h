// SPDX-License-Identifier: Apache-2.0
// The thread that owns a Scheduler: carries events to it from any thread and its plans to the
// workers.
#ifndef KT_COORDINATOR_SCHEDULER_SCHEDULER_LOOP_H_
#define KT_COORDINATOR_SCHEDULER_SCHEDULER_LOOP_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>

#include "common/sim/clock.h"
#include "coordinator/generation/generation.h"
#include "coordinator/scheduler/scheduler.h"

namespace kt {

// The way to the GPU workers. Send is called on the loop's thread and must not block; what becomes
// of the plan is posted to the loop (from any thread, also from within Send): a result, or that the
// workers were lost.
class StepTransport {
 public:
  virtual ~StepTransport() = default;
  virtual void Send(const proto::StepPlan& plan) = 0;
};

// All public functions are thread-safe. Sinks are called on the loop's thread.
class SchedulerLoop final : public Generator {
 public:
  // `transport` and `clock` outlive the loop; the clock's time runs as real time does. `on_result`
  // sees every result on the loop's thread, before the scheduler does.
  SchedulerLoop(std::unique_ptr<Scheduler> scheduler, StepTransport* transport, const Clock* clock,
                std::function<void(const proto::StepResult&)> on_result = {});
  // Requests that live still end with Unavailable.
  ~SchedulerLoop() override;

  // Waits for the scheduler's answer, which does not wait for a step. ResourceExhausted also when
  // very many callers wait here.
  absl::Status Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) override;
  void Cancel(const std::string& request_id) override;
  void FlushCache() override;

  void PostResult(proto::StepResult result);
  void PostWorkersReady(int kv_blocks, int step_tokens_max, LayerwiseCosts costs = {});
  void PostWorkersLost(std::string reason);

  void Drain();  // accepts nothing more
  bool WaitIdle(
      Duration timeout);         // true: no request lives or holds blocks; false: the time is over
  SchedulerStats stats() const;  // as of the last event

 private:
  struct Submission {
    GenerationRequest request;
    std::shared_ptr<GenerationSink> sink;
    std::promise<absl::Status> reply;
  };
  struct Cancellation {
    std::string request_id;
  };
  struct Ready {
    int kv_blocks, step_tokens_max;
    LayerwiseCosts costs;
  };
  struct Lost {
    std::string reason;
  };
  struct Draining {};
  struct Flushing {};
  using Mail =
      std::variant<Submission, Cancellation, proto::StepResult, Ready, Lost, Draining, Flushing>;

  void Post(Mail mail);
  void Run() noexcept;
  std::optional<proto::StepPlan> PlanStep(TimePoint now);
  void Handle(Mail& mail, TimePoint now);

  StepTransport* const transport_;
  const Clock* const clock_;
  const std::function<void(const proto::StepResult&)> on_result_;
  const std::unique_ptr<Scheduler> scheduler_;  // the loop's thread only

  mutable std::mutex mutex_;
  // Guarded by mutex_. Bounded: submissions by kSubmissionsMax, the rest by what was accepted and
  // sent.
  std::condition_variable wake_;  // mail_ or stopping_ changed
  std::condition_variable idle_;  // stats_ changed
  std::deque<Mail> mail_;
  bool handling_ = false;  // mail has been taken and stats_ does not show it yet
  int submissions_ = 0;
  bool stopping_ = false;
  SchedulerStats stats_;

  std::thread thread_;
};

}  // namespace kt

#endif  // KT_COORDINATOR_SCHEDULER_SCHEDULER_LOOP_H_
