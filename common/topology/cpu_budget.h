// SPDX-License-Identifier: Apache-2.0
// How many cores this process may keep busy, and how a number of threads is dealt out to the
// processes that compute.
#ifndef KT_COMMON_TOPOLOGY_CPU_BUDGET_H_
#define KT_COMMON_TOPOLOGY_CPU_BUDGET_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/topology/cgroup.h"
#include "common/topology/topology.h"
#include "common/topology/wait_policy.h"

namespace kt::topology {

struct CpuBudget {
  int physical_cores = 0;  // with at least one allowed hardware thread
  int allowed_pus = 0;     // hardware threads in affinity mask and cpuset
  std::optional<CpuQuota> quota;
  int usable_cores = 0;  // physical cores, capped by the quota rounded down; at least 1
};

// Reads the quota anew; `root` as in system_file.h.
CpuBudget MeasureCpuBudget(const Topology& topology, const std::string& root = "");

// "6 of 8 cores: quota 6.5 in /sys/fs/cgroup/cpu.max"; the reason is left out where nothing limits.
std::string Describe(const CpuBudget& budget);

// Default of --kt-cpuinfer: 90 % of the physical cores (the rest is for everything that does not
// compute), rounded to the nearest so that few cores are all used, capped by the quota; at least 1.
int DefaultCpuThreads(const CpuBudget& budget);

// Default of --kt-threadpool-count for that many threads in all: one per NUMA node, without nodes
// that have less than half the usable cores of the largest (workers hold equal parts of the
// experts, so the slowest sets the pace), and no more than threads.
int DefaultWorkers(const Topology& topology, int threads);

// Periods in which the quota has stopped us since the group was made; growth while serving means
// too many threads. 0 without a quota.
int64_t ThrottleCount(const CpuBudget& budget);

// CPUs a thread is kept on.
using CpuSet = std::vector<int>;

struct WorkerThreads {
  int node = -1;  // NUMA node its threads run on; -1: not tied to one
  int memory_node =
      -1;  // for Topology::BindMemory: `node`, or -1 where that has no memory of its own
  std::vector<CpuSet> pins;  // one per thread: one hardware thread of a core, or all of the node's
                             // once those are used up
};

struct ThreadPlan {
  std::vector<WorkerThreads> experts;  // one per expert worker
  std::vector<WorkerThreads> devices;  // threads of each rank's host device
  WaitPolicy wait;                     // of all these threads, by whether they share cores
  std::vector<std::string> warnings;   // what was granted otherwise than asked
};

struct ThreadRequest {
  int expert_threads = 0;  // of all expert workers together
  int workers = 0;         // expert workers
  std::vector<int> nodes;  // node of each worker (--kt-numa-nodes); empty: dealt out in turn, the
                           // nodes with most usable cores first
  int device_threads = 0;  // of all ranks' host devices together; 0: the device is no CPU
  int device_ranks = 1;    // each gets an equal share of device_threads, at least one
  int usable_cores = 0;    // CpuBudget's; 0: all of the machine's
};

// Deals out threads: evenly, the first `expert_threads % workers` workers get one more, each at
// least one, except that threads go where cores are free while some are. A worker's threads stay on
// its node, on one core each, and share a core with another worker's only when the cores run out.
// More workers than nodes: nodes are used again, with a warning.
//
// The host device takes turns with the expert workers (it waits while they compute), so it shares
// their budget instead of adding to it: it gets the cores that no expert thread is pinned to, where
// there are enough and the quota pays for both; else it floats, over the CPUs of the expert threads
// where a quota leaves cores over (a hand-over on one core is cheap, and nobody spins at the
// quota's expense), over all allowed ones where not. Its ranks share these threads; a core belongs
// to one of them alone while there are enough. Errors:
// InvalidArgument for counts below 1, a node that is not there or whose CPUs are not allowed, a
// list of another length than `workers`.
absl::StatusOr<ThreadPlan> SplitThreads(const ThreadRequest& request, const Topology& topology);

}  // namespace kt::topology

#endif  // KT_COMMON_TOPOLOGY_CPU_BUDGET_H_
