// SPDX-License-Identifier: Apache-2.0
#include "common/topology/wait_policy.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kt::topology {
namespace {

void Futex(const std::atomic<uint32_t>& word, int operation, uint32_t value, bool shared) {
  static_assert(sizeof(word) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
  syscall(SYS_futex, &word, operation | (shared ? 0 : FUTEX_PRIVATE_FLAG), value, nullptr, nullptr, 0);
}

}  // namespace

void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, bool shared) { Futex(word, FUTEX_WAIT, expected, shared); }
void FutexWake(const std::atomic<uint32_t>& word, int waiters_max, bool shared) {
  Futex(word, FUTEX_WAKE, static_cast<uint32_t>(waiters_max), shared);
}

}  // namespace kt::topology
