// SPDX-License-Identifier: Apache-2.0
#include "common/topology/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace kt::topology {
namespace {

const Topology& Machine() {
  static const Topology topology = Topology::Load().value();
  return topology;
}

std::vector<CpuSet> Anywhere(int threads) {
  return std::vector<CpuSet>(threads, Machine().allowed_pus());
}

void ExpectEveryTaskOnce(ThreadPool& pool, int tasks) {
  std::vector<int> runs(tasks, 0);  // plain ints: the pool must order task and caller
  pool.Run(tasks, [&](int task, int thread) {
    ASSERT_GE(thread, 0);
    ASSERT_LT(thread, pool.threads());
    ++runs[task];
  });
  for (int i = 0; i < tasks; ++i) ASSERT_EQ(runs[i], 1) << "task " << i << " of " << tasks;
}

TEST(ThreadPoolTest, RunsEveryTaskOnceForManySizesAndPolicies) {
  for (int spin_us : {0, 20, 1000}) {
    for (int threads : {1, 2, 3, 8}) {
      ThreadPool pool(Machine(), "test", Anywhere(threads), WaitPolicy{spin_us});
      EXPECT_EQ(pool.threads(), threads);
      for (int tasks : {0, 1, 2, 3, 7, 64, 1000}) {
        ExpectEveryTaskOnce(pool, tasks);
        pool.BeginActive();
        ExpectEveryTaskOnce(pool, tasks);
        pool.EndActive();
      }
    }
  }
}

// Back-to-back tiny runs are where a thread that comes late could take a task of the next run.
TEST(ThreadPoolTest, LateThreadsNeverTouchAnotherRun) {
  ThreadPool pool(Machine(), "late", Anywhere(4), WaitPolicy{5});
  pool.BeginActive();
  for (int run = 0; run < 20000; ++run) {
    std::atomic<int> sum{0};
    const int tasks = 2 + run % 5;
    pool.Run(tasks, [&](int task, int) { sum.fetch_add(task + 1, std::memory_order_relaxed); });
    ASSERT_EQ(sum.load(), tasks * (tasks + 1) / 2);
  }
}

TEST(ThreadPoolTest, ThreadNumbersAreExclusive) {
  ThreadPool pool(Machine(), "scratch", Anywhere(3));
  std::vector<std::atomic<int>> inside(3);
  pool.Run(3000, [&](int, int thread) {
    ASSERT_EQ(inside[thread].fetch_add(1), 0);
    inside[thread].fetch_sub(1);
  });
}

TEST(ThreadPoolTest, NamesThreadsWithinTheKernelsLimit) {
  ThreadPool pool(Machine(), "a_name_that_is_far_too_long", Anywhere(2));
  // Both tasks meet, so one of them is on the pool's own thread.
  std::atomic<int> arrived{0};
  std::mutex mutex;
  std::set<std::string> names;
  pool.Run(2, [&](int, int thread) {
    arrived.fetch_add(1);
    while (arrived.load() < 2) std::this_thread::yield();
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    const std::lock_guard lock(mutex);
    if (thread == 1) names.insert(name);
  });
  EXPECT_EQ(names, std::set<std::string>{"a_name_that_i/1"});
}

TEST(ThreadPoolTest, ACpuThatIsNotThereLeavesThreadsUnpinnedAndSaysSo) {
  ThreadPool pool(Machine(), "test", std::vector<CpuSet>(2, CpuSet{100000}));
  EXPECT_NE(pool.warning(), "");
  ExpectEveryTaskOnce(pool, 10);
  ThreadPool pinned(Machine(), "test", Anywhere(2));
  EXPECT_EQ(pinned.warning(), "");
}

TEST(ThreadPoolTest, IdleThreadsSleep) {
  ThreadPool pool(Machine(), "idle", Anywhere(4), WaitPolicy{1000000});
  ExpectEveryTaskOnce(pool, 100);
  const auto cpu_ns = [] {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * int64_t{1000000000} + time.tv_nsec;
  };
  const int64_t before = cpu_ns();
  const timespec pause{0, 100 * 1000 * 1000};
  nanosleep(&pause, nullptr);
  // Three threads that spun for this long would have used a hundred milliseconds at least.
  EXPECT_LT(cpu_ns() - before, 20 * 1000 * 1000);
}

}  // namespace
}  // namespace kt::topology
