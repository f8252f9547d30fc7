// SPDX-License-Identifier: Apache-2.0
#include "common/ipc/futex_event.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace kt {
namespace {

void CpuRelax() { __builtin_ia32_pause(); }

long Futex(std::atomic<uint32_t>* word, int op, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), op, value, timeout, nullptr, 0);
}

}  // namespace

int64_t NowUs() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000000 + t.tv_nsec / 1000;
}

void FutexEvent::Set(uint32_t x) {
  // Sequentially consistent with the sleeper's increment and re-check: either we see the sleeper or
  // it sees our value.
  value.store(x, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) Futex(&value, FUTEX_WAKE, INT_MAX, nullptr);
}

bool FutexEvent::Advance(uint32_t from, uint32_t to) {
  if (!value.compare_exchange_strong(from, to, std::memory_order_seq_cst)) return false;
  if (sleepers.load(std::memory_order_seq_cst) != 0) Futex(&value, FUTEX_WAKE, INT_MAX, nullptr);
  return true;
}

uint32_t FutexEvent::WaitWhile(uint32_t old, int64_t spin_us, int64_t timeout_us) {
  uint32_t now_value = Load();
  if (now_value != old) return now_value;
  int64_t start = NowUs();
  while (spin_us > 0) {
    for (int i = 0; i < 64; ++i) {
      CpuRelax();
      if ((now_value = Load()) != old) return now_value;
    }
    if (NowUs() - start >= spin_us) break;
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  while ((now_value = value.load(std::memory_order_seq_cst)) == old) {
    timespec rest{};
    timespec* limit = nullptr;
    if (timeout_us >= 0) {
      int64_t left = start + timeout_us - NowUs();
      if (left <= 0) break;
      rest = {.tv_sec = left / 1000000, .tv_nsec = left % 1000000 * 1000};
      limit = &rest;
    }
    Futex(&value, FUTEX_WAIT, old, limit);
  }
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return now_value;
}

}  // namespace kt
