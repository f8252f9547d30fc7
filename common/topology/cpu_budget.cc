// SPDX-License-Identifier: Apache-2.0
#include "common/topology/cpu_budget.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "common/base/status.h"

namespace kt::topology {
namespace {

// Most cores first.
std::vector<int> NodesWithCpus(const Topology& topology) {
  std::vector<int> ids;
  for (const NumaNode& node : topology.nodes()) {
    if (!node.cores.empty()) ids.push_back(node.id);
  }
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) {
    return topology.FindNode(a)->cores.size() > topology.FindNode(b)->cores.size();
  });
  return ids;
}

// Threads of each worker, given its node: even, except that those which find no core left on their
// node go to workers whose nodes have some.
std::vector<int> DealThreads(int threads, const std::vector<int>& node_of,
                             const Topology& topology) {
  std::map<int, int> free;  // cores of each node
  for (int node : node_of) free[node] = static_cast<int>(topology.FindNode(node)->cores.size());
  std::vector<int> dealt(node_of.size(), 0);
  for (int t = 0; t < threads; ++t) {
    const auto rank = [&](size_t w) {
      // Every worker gets one, then free cores come first.
      return std::tuple(dealt[w] > 0 && free[node_of[w]] <= 0, dealt[w], w);
    };
    size_t best = 0;
    for (size_t w = 1; w < dealt.size(); ++w) {
      if (rank(w) < rank(best)) best = w;
    }
    ++dealt[best];
    --free[node_of[best]];
  }
  return dealt;
}

absl::Status CheckRequest(const ThreadRequest& request, const Topology& topology) {
  if (request.workers < 1)
    return InvalidArgument("--kt-threadpool-count {}: at least 1 is needed", request.workers);
  if (request.expert_threads < 1)
    return InvalidArgument("--kt-cpuinfer {}: at least 1 is needed", request.expert_threads);
  if (request.device_threads < 0)
    return InvalidArgument("device threads {}: must not be negative", request.device_threads);
  if (request.device_ranks < 1)
    return InvalidArgument("device ranks {}: at least 1 is needed", request.device_ranks);
  if (!request.nodes.empty() && request.nodes.size() != static_cast<size_t>(request.workers)) {
    return InvalidArgument(
        "--kt-numa-nodes names {} nodes for --kt-threadpool-count {}: name one node per worker",
        request.nodes.size(), request.workers);
  }
  const auto usable = NodesWithCpus(topology);
  for (int id : request.nodes) {
    if (std::find(usable.begin(), usable.end(), id) == usable.end()) {
      return InvalidArgument(
          "--kt-numa-nodes {}: no CPU that this process may use is on that node; choose from {}",
          id, fmt::join(usable, ", "));
    }
  }
  return absl::OkStatus();
}

// Hands out the hardware threads of cores: first one of each core, then the siblings.
class PuDealer {
 public:
  explicit PuDealer(const Topology& topology)
      : topology_(topology), taken_(topology.cores().size(), 0) {}

  // A hardware thread of the least used of these cores; all of the cores' when none is free.
  CpuSet Take(std::span<const int> cores) {
    const auto& all = topology_.cores();
    int best = -1;
    for (int core : cores) {
      const bool free = taken_[core] < all[core].pus.size();
      if (free && (best < 0 || taken_[core] < taken_[best])) best = core;
    }
    if (best >= 0) return {all[best].pus[taken_[best]++]};
    CpuSet everywhere;
    for (int core : cores)
      everywhere.insert(everywhere.end(), all[core].pus.begin(), all[core].pus.end());
    std::sort(everywhere.begin(), everywhere.end());
    return everywhere;
  }

  std::vector<int> UntouchedCores() const {
    std::vector<int> cores;
    for (size_t i = 0; i < taken_.size(); ++i) {
      if (taken_[i] == 0) cores.push_back(static_cast<int>(i));
    }
    return cores;
  }

 private:
  const Topology& topology_;
  std::vector<size_t> taken_;  // hardware threads of each core that are in use
};

std::vector<int> AllCores(const Topology& topology) {
  std::vector<int> cores(topology.cores().size());
  for (size_t i = 0; i < cores.size(); ++i) cores[i] = static_cast<int>(i);
  return cores;
}

}  // namespace

CpuBudget MeasureCpuBudget(const Topology& topology, const std::string& root) {
  CpuBudget budget;
  budget.physical_cores = static_cast<int>(topology.cores().size());
  budget.allowed_pus = static_cast<int>(topology.allowed_pus().size());
  budget.quota = ReadCpuQuota(root);
  budget.usable_cores = budget.physical_cores;
  if (budget.quota && budget.quota->cpus < budget.usable_cores) {
    budget.usable_cores = std::max(1, static_cast<int>(budget.quota->cpus));
  }
  return budget;
}

std::string Describe(const CpuBudget& budget) {
  const std::string counts =
      fmt::format("{} of {} cores ({} hardware threads)", budget.usable_cores,
                  budget.physical_cores, budget.allowed_pus);
  if (!budget.quota) return counts;
  return fmt::format("{}: quota of {:.2f} CPUs in {}", counts, budget.quota->cpus,
                     budget.quota->file);
}

int DefaultCpuThreads(const CpuBudget& budget) {
  return std::max(1, std::min(budget.usable_cores, (budget.physical_cores * 9 + 5) / 10));
}

int DefaultWorkers(const Topology& topology, int threads) {
  const auto nodes = NodesWithCpus(topology);  // at least one CPU is allowed
  const size_t most = topology.FindNode(nodes[0])->cores.size();
  const auto large = std::count_if(nodes.begin(), nodes.end(), [&](int id) {
    return 2 * topology.FindNode(id)->cores.size() >= most;
  });
  return std::clamp(threads, 1, static_cast<int>(large));
}

int64_t ThrottleCount(const CpuBudget& budget) {
  return budget.quota ? ReadThrottleCount(*budget.quota) : 0;
}

absl::StatusOr<ThreadPlan> SplitThreads(const ThreadRequest& request, const Topology& topology) {
  KT_RETURN_IF_ERROR(CheckRequest(request, topology));
  ThreadPlan plan;
  const auto nodes = NodesWithCpus(topology);
  const int node_count = static_cast<int>(nodes.size());
  const int core_count = static_cast<int>(topology.cores().size());

  if (request.workers > node_count) {
    plan.warnings.push_back(
        fmt::format("--kt-threadpool-count {}: this machine has {} usable NUMA node{}, so expert "
                    "workers share nodes; use {}",
                    request.workers, node_count, node_count == 1 ? "" : "s", node_count));
  }
  if (request.expert_threads < request.workers) {
    plan.warnings.push_back(
        fmt::format("--kt-cpuinfer {}: raised to {}, one thread for each expert worker",
                    request.expert_threads, request.workers));
  } else if (request.expert_threads > core_count) {
    plan.warnings.push_back(
        fmt::format("--kt-cpuinfer {}: more threads than the {} usable cores, they will share "
                    "cores; use {} or less",
                    request.expert_threads, core_count, core_count));
  }

  std::vector<int> node_of = request.nodes;
  for (int w = static_cast<int>(node_of.size()); w < request.workers; ++w)
    node_of.push_back(nodes[w % node_count]);
  // Fewer workers than nodes with threads for more than one node: tying them to one would waste
  // the others' cores.
  const bool may_span = request.nodes.empty() && request.workers < node_count;
  const int total = std::max(request.expert_threads, request.workers);
  std::vector<int> dealt = DealThreads(total, node_of, topology);
  PuDealer dealer(topology);
  const std::vector<int> all_cores = AllCores(topology);
  for (int w = 0; w < request.workers; ++w) {
    const NumaNode& node = *topology.FindNode(node_of[w]);
    const int even = total / request.workers + (w < total % request.workers ? 1 : 0);
    const bool spans_nodes = may_span && even > static_cast<int>(node.cores.size());
    const int threads = may_span ? even : dealt[w];
    WorkerThreads worker;
    if (2 * threads < even) {
      plan.warnings.push_back(
          fmt::format("expert worker {}: NUMA node {} has {} usable core{}, so it has {} thread{} "
                      "where others have more; all hold equal parts of the experts, so it holds "
                      "the others up; leave the node out with --kt-numa-nodes",
                      w, node.id, node.cores.size(), node.cores.size() == 1 ? "" : "s", threads,
                      threads == 1 ? "" : "s"));
    }
    if (!spans_nodes) {
      worker.node = node.id;
      worker.memory_node = node.memory_bytes > 0 ? node.id : -1;
    } else {
      plan.warnings.push_back(
          fmt::format("expert worker {}: {} threads do not fit on the {} cores of NUMA node {}, so "
                      "it is tied to no node; "
                      "use --kt-threadpool-count {}",
                      w, threads, node.cores.size(), node.id, node_count));
    }
    for (int t = 0; t < threads; ++t)
      worker.pins.push_back(dealer.Take(spans_nodes ? all_cores : node.cores));
    plan.experts.push_back(std::move(worker));
  }

  const std::vector<int> spare = dealer.UntouchedCores();
  const int usable = request.usable_cores > 0 ? request.usable_cores : core_count;
  const int device_threads =
      request.device_threads == 0 ? 0 : std::max(request.device_threads, request.device_ranks);
  const bool own_cores =
      static_cast<int>(spare.size()) >= device_threads && total + device_threads <= usable;
  plan.wait = own_cores ? kWaitOnOwnCores : kWaitOnSharedCores;
  std::set<int> floating;
  for (const WorkerThreads& worker : plan.experts) {
    for (const CpuSet& pin : worker.pins) floating.insert(pin.begin(), pin.end());
  }
  const auto allowed = topology.allowed_pus();
  if (usable == core_count || static_cast<int>(floating.size()) < device_threads)
    floating = {allowed.begin(), allowed.end()};
  for (int rank = 0; rank < request.device_ranks; ++rank) {
    WorkerThreads& device = plan.devices.emplace_back();
    const int threads = device_threads / request.device_ranks +
                        (rank < device_threads % request.device_ranks ? 1 : 0);
    for (int t = 0; t < threads; ++t) {
      device.pins.push_back(own_cores ? dealer.Take(spare)
                                      : CpuSet(floating.begin(), floating.end()));
    }
  }
  return plan;
}

}  // namespace kt::topology
