// SPDX-License-Identifier: Apache-2.0
// Time as state machines see it: they are handed `now` and never ask; what drives them asks a
// Clock.
#ifndef KT_COMMON_SIM_CLOCK_H_
#define KT_COMMON_SIM_CLOCK_H_

#include <chrono>

namespace kt {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

// Never goes back. Implementations say which threads may call.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

// The machine's monotonic clock. Thread-safe.
class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

// Stands still until advanced. One thread.
class SimulatedClock final : public Clock {
 public:
  TimePoint Now() const override { return now_; }
  void Advance(Duration by) { now_ += by; }

 private:
  TimePoint now_{};
};

}  // namespace kt

#endif  // KT_COMMON_SIM_CLOCK_H_
