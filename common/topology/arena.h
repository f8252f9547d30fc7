// SPDX-License-Identifier: Apache-2.0
// Memory for weights: a segment in the largest pages the machine gives, in the memory of one NUMA
// node, put there by the threads that are going to read it; and what that came to, measured.
#ifndef KT_COMMON_TOPOLOGY_ARENA_H_
#define KT_COMMON_TOPOLOGY_ARENA_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/parallel.h"
#include "common/ipc/segment.h"
#include "common/topology/topology.h"

namespace kt::topology {

struct ArenaFacts {
  PageUse pages;
  int node = -1;  // that it is bound to; -1: none
  double node_share =
      -1;  // of its pages that lie there, 0 to 1; -1: not bound, or not to be learnt
  double gbytes_per_s = 0;       // read by all threads; 0: too small to be measured
  double huge_gbytes_per_s = 0;  // where it lies in small pages: the same of anonymous huge pages
                                 // on that node; 0: not measured, or there are none
  std::string warning;           // what makes it slower and how to mend that; empty: nothing
};

struct Arena {
  Segment segment;
  ArenaFacts facts;
};

// hugetlb pages where enough are free, else transparent huge pages, else 4 KiB. `node` as in
// Topology::BindMemory. Called by the thread that calls threads.Run, pinned like the others: where
// binding memory is forbidden, pages come from the node of the thread that touches them first.
// Errors: ResourceExhausted; anything else that fails costs speed and is told in the facts.
absl::StatusOr<Arena> MakeArena(const std::string& name, size_t bytes, const Topology& topology,
                                int node, Parallel& threads);

// "4 KiB pages, NUMA node 1 (100 %), read at 21.7 GB/s where huge pages give 23.0".
std::string Describe(const ArenaFacts& facts);

// How to get huge pages for `bytes` of shared memory (0: some) on a machine that gave none.
std::string HugePageAdvice(size_t bytes, const std::string& root = "");

}  // namespace kt::topology

#endif  // KT_COMMON_TOPOLOGY_ARENA_H_
