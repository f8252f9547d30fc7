// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_TOPOLOGY_WAIT_POLICY_H_
#define KT_COMMON_TOPOLOGY_WAIT_POLICY_H_

#include <cstdint>

namespace kt::topology {

// How a thread waits for another one while an answer is likely to come soon: it spins for a bounded
// time and then sleeps in the kernel. Chosen once at start (SplitThreads) and given to everything
// that waits, in a process and between processes. Who spins keeps its core from others: on cores of
// one's own a long spin saves wake-ups, on shared ones it takes away the time of the very thread
// that is waited for (benchmarks/wait_policy_bench.cc has the figures).
struct WaitPolicy {
  int64_t spin_us = 5;  // 0: sleep at once
};
constexpr WaitPolicy kWaitOnSharedCores{5};
constexpr WaitPolicy kWaitOnOwnCores{50};

}  // namespace kt::topology

#endif  // KT_COMMON_TOPOLOGY_WAIT_POLICY_H_
