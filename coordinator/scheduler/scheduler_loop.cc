// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/scheduler_loop.h"

#include <pthread.h>

#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/observe/timeline.h"

namespace kt {
namespace {

constexpr int kSubmissionsMax = 1024;

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

absl::Status Stopping() { return Unavailable("the server is stopping"); }

}  // namespace

SchedulerLoop::SchedulerLoop(std::unique_ptr<Scheduler> scheduler, StepTransport* transport,
                             const Clock* clock,
                             std::function<void(const proto::StepResult&)> on_result)
    : transport_(transport),
      clock_(clock),
      on_result_(std::move(on_result)),
      scheduler_(std::move(scheduler)),
      stats_(scheduler_->stats()) {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "kt-scheduler");
}

SchedulerLoop::~SchedulerLoop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

absl::Status SchedulerLoop::Submit(GenerationRequest request,
                                   std::shared_ptr<GenerationSink> sink) {
  Submission submission{std::move(request), std::move(sink), {}};
  std::future<absl::Status> reply = submission.reply.get_future();
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return Stopping();
    if (submissions_ == kSubmissionsMax) {
      return ResourceExhausted("{} requests wait to be taken in; try again later", submissions_);
    }
    ++submissions_;
    mail_.push_back(std::move(submission));
  }
  wake_.notify_one();
  return reply.get();
}

void SchedulerLoop::Cancel(const std::string& request_id) { Post(Cancellation{request_id}); }
void SchedulerLoop::PostResult(proto::StepResult result) { Post(std::move(result)); }
void SchedulerLoop::PostWorkersReady(int kv_blocks, int step_tokens_max, LayerwiseCosts costs) {
  Post(Ready{kv_blocks, step_tokens_max, costs});
}
void SchedulerLoop::PostWorkersLost(std::string reason) { Post(Lost{std::move(reason)}); }
void SchedulerLoop::Drain() { Post(Draining{}); }
void SchedulerLoop::FlushCache() { Post(Flushing{}); }

void SchedulerLoop::Post(Mail mail) {
  {
    std::lock_guard lock(mutex_);
    mail_.push_back(std::move(mail));
  }
  wake_.notify_one();
}

bool SchedulerLoop::WaitIdle(Duration timeout) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(
      lock, timeout, [this] { return mail_.empty() && !handling_ && stats_.requests_live == 0; });
}

SchedulerStats SchedulerLoop::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void SchedulerLoop::Run() noexcept {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto has_mail = [this] { return stopping_ || !mail_.empty(); };
    if (const auto timer = scheduler_->NextTimer()) {
      wake_.wait_for(lock, *timer - clock_->Now(), has_mail);
    } else {
      wake_.wait(lock, has_mail);
    }
    std::deque<Mail> mail = std::exchange(mail_, {});
    submissions_ = 0;
    handling_ = true;
    lock.unlock();

    const TimePoint now = clock_->Now();
    {
      timeline::Span span("take in", "events", static_cast<int64_t>(mail.size()));
      for (Mail& m : mail) Handle(m, now);
      mail.clear();
      scheduler_->OnTimer(now);
    }
    while (auto plan = PlanStep(now)) {
      timeline::Span span("send step", "sequences", plan->sequences_size());
      transport_->Send(*plan);
    }
    SchedulerStats stats = scheduler_->stats();

    lock.lock();
    stats_ = std::move(stats);
    handling_ = false;
    idle_.notify_all();
  }
  for (Mail& m : mail_) {
    if (auto* submission = std::get_if<Submission>(&m)) submission->reply.set_value(Stopping());
  }
  mail_.clear();
  lock.unlock();
  scheduler_->FailAll(Stopping());
}

std::optional<proto::StepPlan> SchedulerLoop::PlanStep(TimePoint now) {
  timeline::Span span("plan step");
  return scheduler_->NextStep(now);
}

void SchedulerLoop::Handle(Mail& mail, TimePoint now) {
  std::visit(Overloaded{
                 [&](Submission& m) {
                   m.reply.set_value(scheduler_->Add(std::move(m.request), std::move(m.sink), now));
                 },
                 [&](Cancellation& m) { scheduler_->Cancel(m.request_id); },
                 [&](proto::StepResult& m) {
                   if (on_result_) on_result_(m);
                   scheduler_->OnStepResult(m, now);
                 },
                 [&](Ready& m) {
                   scheduler_->OnLayerwiseCosts(m.costs);
                   scheduler_->OnWorkersReady(m.kv_blocks, m.step_tokens_max, now);
                 },
                 [&](Lost& m) { scheduler_->OnWorkersLost(m.reason, now); },
                 [&](Draining&) { scheduler_->Drain(); },
                 [&](Flushing&) { scheduler_->FlushCache(); },
             },
             mail);
}

}  // namespace kt
