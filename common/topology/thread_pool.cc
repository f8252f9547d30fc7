// SPDX-License-Identifier: Apache-2.0
#include "common/topology/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <latch>
#include <mutex>

#include "common/base/status.h"

namespace kt::topology {

ThreadPool::ThreadPool(const Topology& topology, std::string name, std::vector<CpuSet> pins,
                       WaitPolicy policy)
    : topology_(topology), name_(std::move(name)), pins_(std::move(pins)), policy_(policy) {
  std::latch pinned(threads() - 1);
  std::mutex warning_mutex;
  for (int thread = 1; thread < threads(); ++thread) {
    threads_.emplace_back([this, thread, &pinned, &warning_mutex] {
      const std::string suffix = fmt::format("/{}", thread);
      pthread_setname_np(pthread_self(), (name_.substr(0, 15 - suffix.size()) + suffix).c_str());
      if (const absl::Status status = topology_.BindThread(pins_[thread]); !status.ok()) {
        const std::lock_guard lock(warning_mutex);
        warning_ = Message(status);
      }
      pinned.count_down();
      ThreadMain(thread);
    });
  }
  pinned.wait();
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  newest_run_.Set(newest_run_.Load() + 1);
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::BindCaller() {
  if (const absl::Status status = topology_.BindThread(pins_[0]); !status.ok())
    warning_ = Message(status);
}

void ThreadPool::Run(int tasks, Task f) {
  if (tasks <= 1 || threads_.empty()) {
    for (int i = 0; i < tasks; ++i) f(i, 0);
    return;
  }
  const uint32_t count = static_cast<uint32_t>(tasks);
  const uint32_t run = newest_run_.Load() + 1;
  task_ = &f;
  task_count_ = count;
  done_.store(0, std::memory_order_relaxed);
  claim_.store(uint64_t{run} << 32 | count, std::memory_order_release);
  newest_run_.Set(run);
  Work(run, 0);
  for (uint32_t finished = finished_run_.Load(); finished != run;)
    finished = finished_run_.WaitWhile(finished, SpinUs(), -1);
}

void ThreadPool::Work(uint32_t run, int thread) {
  uint32_t finished = 0;
  uint64_t claim = claim_.load(std::memory_order_acquire);
  while (claim >> 32 == run && static_cast<uint32_t>(claim) > 0) {
    if (!claim_.compare_exchange_weak(claim, claim - 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire))
      continue;
    (*task_)(static_cast<int>(task_count_ - static_cast<uint32_t>(claim)), thread);
    ++finished;
    claim = claim_.load(std::memory_order_acquire);
  }
  if (finished == 0) return;
  // Once the last task is accounted for, the caller may start the next run: nothing of this run is
  // touched after that.
  const uint32_t count = task_count_;
  if (done_.fetch_add(finished, std::memory_order_acq_rel) + finished == count)
    finished_run_.Set(run);
}

void ThreadPool::ThreadMain(int thread) {
  for (uint32_t seen = 0;;) {
    seen = newest_run_.WaitWhile(seen, SpinUs(), -1);
    if (stop_.load()) return;
    Work(seen, thread);
  }
}

}  // namespace kt::topology
