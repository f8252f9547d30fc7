// SPDX-License-Identifier: Apache-2.0
#include "common/observe/timeline.h"

#include <unistd.h>

#include <ctime>
#include <mutex>
#include <utility>

namespace kt::timeline {
namespace {

std::mutex mutex;
Recording current;  // of the recording that runs

}  // namespace

namespace internal {
std::atomic<bool> recording{false};
}

void Add(Event event) {
  if (!internal::recording.load(std::memory_order_relaxed)) return;
  event.thread = gettid();
  std::lock_guard lock(mutex);
  if (!internal::recording) return;
  if (current.events.size() == kEventsMax) {
    ++current.dropped;
    return;
  }
  current.events.push_back(event);
}

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

bool Start() {
  std::lock_guard lock(mutex);
  return !internal::recording.exchange(true);
}

Recording Stop() {
  std::lock_guard lock(mutex);
  internal::recording = false;
  return std::exchange(current, {});
}

}  // namespace kt::timeline
