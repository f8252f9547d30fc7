// SPDX-License-Identifier: Apache-2.0
// A fixed set of pinned threads that run the tasks of one caller at a time; the caller is thread 0
// and works too.
//
// A run ends when its tasks are done, not when every thread has taken part: a thread that is still
// asleep, or has lost its core to another process, is not waited for unless it holds a task.
// Nothing is allocated per run.
//
// Threads  Run, BeginActive, EndActive and BindCaller belong to one thread at a time; f runs on all
// of them and must not call Run Errors   none: a thread that cannot be pinned runs unpinned, and
// `warning` says so once
#ifndef KT_COMMON_TOPOLOGY_THREAD_POOL_H_
#define KT_COMMON_TOPOLOGY_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "common/base/parallel.h"
#include "common/ipc/futex_event.h"
#include "common/topology/cpu_budget.h"
#include "common/topology/wait_policy.h"

namespace kt::topology {

class ThreadPool final : public Parallel {
 public:
  // `pins` as SplitThreads made them, at least one; pins[0] is for the caller. Threads are called
  // name/1, name/2, ... (cut to 15 bytes). `topology` outlives the pool.
  ThreadPool(const Topology& topology, std::string name, std::vector<CpuSet> pins,
             WaitPolicy policy = {});
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const override { return static_cast<int>(pins_.size()); }
  void Run(int tasks, FunctionRef<void(int task, int thread)> f) override;

  // Keeps the calling thread, which is going to call Run, on pins[0].
  void BindCaller();

  // Between these two hints more runs are likely to follow soon, so idle threads spin for a while
  // before they sleep; outside they sleep at once and cost nothing.
  void BeginActive() { active_.store(true, std::memory_order_relaxed); }
  void EndActive() { active_.store(false, std::memory_order_relaxed); }

  // Why threads run unpinned; empty: all are pinned. Stable once the constructor and BindCaller
  // have returned.
  const std::string& warning() const { return warning_; }

 private:
  using Task = FunctionRef<void(int, int)>;

  // Claims and runs tasks of run number `run` until none is left.
  void Work(uint32_t run, int thread);
  void ThreadMain(int thread);
  int64_t SpinUs() const { return active_.load(std::memory_order_relaxed) ? policy_.spin_us : 0; }

  const Topology& topology_;
  const std::string name_;
  const std::vector<CpuSet> pins_;
  const WaitPolicy policy_;
  std::string warning_;

  // The current run: written before claim_ publishes it, read only by who has claimed one of its
  // tasks, and not written again before all of them are done. claim_ carries the run's number so
  // that a thread that comes late cannot claim a task of another run.
  const Task* task_ = nullptr;
  uint32_t task_count_ = 0;
  alignas(64) std::atomic<uint64_t> claim_{0};  // run number << 32 | tasks not yet claimed
  alignas(64) std::atomic<uint32_t> done_{0};   // finished tasks of this run
  FutexEvent newest_run_{};    // number of the newest run: idle threads wait for it
  FutexEvent finished_run_{};  // number of the newest run that is done: the caller waits for it
  std::atomic<bool> active_{false};
  std::atomic<bool> stop_{false};

  std::vector<std::thread> threads_;
};

}  // namespace kt::topology

#endif  // KT_COMMON_TOPOLOGY_THREAD_POOL_H_
