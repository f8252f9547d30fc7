// SPDX-License-Identifier: Apache-2.0
// Notices when the CPU quota of this process's control group stops threads while it serves: more
// of them compute than the quota pays for.
#ifndef KT_COMMON_TOPOLOGY_THROTTLE_WATCH_H_
#define KT_COMMON_TOPOLOGY_THROTTLE_WATCH_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/topology/cgroup.h"

namespace kt::topology {

// For one thread.
class ThrottleWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // nullopt: no quota, nothing to notice.
  explicit ThrottleWatch(std::optional<CpuQuota> quota);

  // Reads the group's counter (some microseconds). Returns what to log: nothing, or one sentence
  // when the count has grown, at most every five minutes.
  std::string Sample(Time now);

  // Periods in which the group was stopped, from construction to the last Sample.
  int64_t periods() const { return last_ - first_; }

 private:
  const std::optional<CpuQuota> quota_;
  const int64_t first_;
  int64_t last_;
  int64_t told_;  // the count when a warning was given last
  std::optional<Time> told_at_;
};

}  // namespace kt::topology

#endif  // KT_COMMON_TOPOLOGY_THROTTLE_WATCH_H_
