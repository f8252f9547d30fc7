// SPDX-License-Identifier: Apache-2.0
// What waiting costs when two processes share all cores, as the host device and an expert worker do
// on a small machine: each has one thread per core, they hand work over in turns, and whoever waits
// may spin for `spin_us` first. One round is: the device computes, rings the worker, (with overlap:
// computes something else meanwhile), and waits for it. `ideal_us` is the work alone; the rest is
// hand-over and waiting. cores 0: both processes have a thread for every core, the device's float
// as SplitThreads lets them; 1: the device's are pinned as well; 2: one thread each, on cores of
// their own.
#include <benchmark/benchmark.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <vector>

#include "common/ipc/futex_event.h"
#include "common/topology/thread_pool.h"

namespace kt::topology {
namespace {

struct Doorbells {
  FutexEvent task;
  FutexEvent answer;
};
constexpr uint32_t kStop = 0xffffffffu;

// Work of a fixed number of instructions: waiting for a core makes it late, not shorter.
void Compute(int64_t units) {
  uint64_t x = 1;
  for (int64_t i = 0; i < units; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    benchmark::DoNotOptimize(x);
  }
}

int64_t UnitsPerUs() {
  static const int64_t units = [] {
    constexpr int64_t kUnits = 1000000;
    int64_t best_ns = INT64_MAX;  // of several, so that a disturbed one does not count
    for (int i = 0; i < 50; ++i) {
      const auto start = std::chrono::steady_clock::now();
      Compute(kUnits);
      best_ns = std::min<int64_t>(
          best_ns, std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
    }
    return kUnits * 1000 / best_ns;
  }();
  return units;
}

// A step that splits `us` of work per thread into small tasks, as kernels do.
void RunStep(ThreadPool& pool, int64_t us) {
  constexpr int kTasksPerThread = 4;
  const int64_t units = UnitsPerUs() * us / kTasksPerThread;
  pool.Run(pool.threads() * kTasksPerThread, [units](int, int) { Compute(units); });
}

enum Cores : int64_t { kSharedFloating = 0, kSharedPinned = 1, kOwn = 2 };

std::vector<CpuSet> OnePerCore(const Topology& topology) {
  std::vector<CpuSet> pins;
  for (const Core& core : topology.cores()) pins.push_back({core.pus[0]});
  return pins;
}

std::vector<CpuSet> DevicePins(const Topology& topology, int64_t cores) {
  const auto one_per_core = OnePerCore(topology);
  if (cores == kOwn) return {one_per_core.front()};
  if (cores == kSharedPinned) return one_per_core;
  return std::vector<CpuSet>(one_per_core.size(), topology.allowed_pus());
}

std::vector<CpuSet> WorkerPins(const Topology& topology, int64_t cores) {
  const auto one_per_core = OnePerCore(topology);
  return cores == kOwn ? std::vector<CpuSet>{one_per_core.back()} : one_per_core;
}

void WorkerProcess(const Topology& topology, Doorbells& bells, WaitPolicy policy, int64_t cores,
                   int64_t work_us) {
  ThreadPool pool(topology, "worker", WorkerPins(topology, cores), policy);
  pool.BindCaller();
  pool.BeginActive();
  for (uint32_t seen = 0;;) {
    const uint32_t next = bells.task.WaitWhile(seen, policy.spin_us, -1);
    if (next == kStop) return;
    if (next == seen) continue;
    RunStep(pool, work_us);
    seen = next;
    bells.answer.Set(seen);
  }
}

void HandOver(benchmark::State& state) {
  const WaitPolicy policy{state.range(0)};
  const int64_t cores = state.range(1);
  const bool overlap = state.range(2) != 0;
  constexpr int64_t kDeviceUs = 50;
  constexpr int64_t kWorkerUs = 100;
  constexpr int64_t kMeanwhileUs = 20;
  UnitsPerUs();
  static const Topology topology =
      Topology::Load().value();  // once: later this thread's own mask is narrower
  void* page =
      mmap(nullptr, sizeof(Doorbells), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Doorbells& bells = *new (page) Doorbells{};
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    WorkerProcess(topology, bells, policy, cores, kWorkerUs);
    _exit(0);
  }
  {
    ThreadPool pool(topology, "device", DevicePins(topology, cores), policy);
    pool.BindCaller();
    pool.BeginActive();
    uint32_t sequence = 0;
    for (auto _ : state) {
      RunStep(pool, kDeviceUs);
      bells.task.Set(++sequence);
      if (overlap) RunStep(pool, kMeanwhileUs);
      while (bells.answer.WaitWhile(sequence - 1, policy.spin_us, -1) != sequence) {
      }
    }
  }
  bells.task.Set(kStop);
  waitpid(child, nullptr, 0);
  munmap(page, sizeof(Doorbells));
  state.counters["ideal_us"] = kDeviceUs + kWorkerUs + (overlap ? kMeanwhileUs : 0);
}
BENCHMARK(HandOver)
    ->ArgNames({"spin_us", "cores", "overlap"})
    ->ArgsProduct({{0, 5, 20, 50, 200, 100000}, {kSharedFloating, kSharedPinned, kOwn}, {0, 1}})
    ->ComputeStatistics("min",
                        [](const std::vector<double>& v) {
                          return *std::min_element(v.begin(), v.end());
                        })
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kt::topology

BENCHMARK_MAIN();
