// SPDX-License-Identifier: Apache-2.0
// A 32-bit word in shared memory that one side advances and the other waits for: spin for a bounded
// time, then sleep on a futex.
#ifndef KT_COMMON_IPC_FUTEX_EVENT_H_
#define KT_COMMON_IPC_FUTEX_EVENT_H_

#include <atomic>
#include <cstdint>

namespace kt {

// Lives in zeroed shared memory. `value` carries the protocol's meaning; `sleepers` tells the
// writer whether a wake-up call is owed. Writers: Set. Waiters: WaitWhile. Any number of both;
// acquire/release only, so data written before Set is visible after WaitWhile.
struct alignas(64) FutexEvent {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;

  uint32_t Load() const { return value.load(std::memory_order_acquire); }
  // Stores `x` and wakes all sleepers, if there are any.
  void Set(uint32_t x);
  // Set(to), but only if the value is `from`.
  bool Advance(uint32_t from, uint32_t to);
  // Returns the value as soon as it differs from `old`, or `old` after the time: first spins
  // spin_us, then sleeps. timeout_us < 0: for ever.
  uint32_t WaitWhile(uint32_t old, int64_t spin_us, int64_t timeout_us);
};
static_assert(sizeof(FutexEvent) == 64 && std::atomic<uint32_t>::is_always_lock_free);

// Monotonic time.
int64_t NowUs();

}  // namespace kt

#endif  // KT_COMMON_IPC_FUTEX_EVENT_H_
