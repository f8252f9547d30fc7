// SPDX-License-Identifier: Apache-2.0
// How a thread waits for another one: spin for a bounded time while an answer is likely to come soon, then sleep in the kernel.
// One policy object is chosen at start and given to everything that waits. A thread that spins keeps its core from others, so a
// long spin pays only where every waiting thread has a core of its own (benchmarks/wait_policy_bench.cc has the figures).
#ifndef KT_COMMON_TOPOLOGY_WAIT_POLICY_H_
#define KT_COMMON_TOPOLOGY_WAIT_POLICY_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace kt::topology {

struct WaitPolicy {
  int spin_us = 20;  // 0: sleep at once
};

inline void CpuPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Polls `done` for at most spin_us; returns what it said last. With 0 it is asked once.
template <typename Predicate>
bool SpinUntil(int spin_us, Predicate done) {
  if (done()) return true;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us);
  while (std::chrono::steady_clock::now() < deadline) {
    for (int i = 0; i < 16; ++i) {
      CpuPause();
      if (done()) return true;
    }
  }
  return false;
}

// Sleeps while `word` holds `expected`; may return early, so callers loop. `shared`: the word lies in memory that several processes map.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, bool shared = false);
void FutexWake(const std::atomic<uint32_t>& word, int waiters_max, bool shared = false);

}  // namespace kt::topology

#endif  // KT_COMMON_TOPOLOGY_WAIT_POLICY_H_
