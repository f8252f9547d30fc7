// SPDX-License-Identifier: Apache-2.0
#include "common/topology/throttle_watch.h"

#include <fmt/format.h>

#include <algorithm>

namespace kt::topology {
namespace {
constexpr auto kQuiet = std::chrono::minutes(5);
}  // namespace

ThrottleWatch::ThrottleWatch(std::optional<CpuQuota> quota)
    : quota_(std::move(quota)),
      first_(quota_ ? ReadThrottleCount(*quota_) : 0),
      last_(first_),
      told_(first_) {}

std::string ThrottleWatch::Sample(Time now) {
  if (!quota_) return "";
  last_ = std::max(last_, ReadThrottleCount(*quota_));
  if (last_ == told_ || (told_at_ && now - *told_at_ < kQuiet)) return "";
  const std::string text = fmt::format(
      "the quota of {:.2f} CPUs ({}) has stopped this runtime in {} periods; raise it or lower "
      "--kt-cpuinfer and --device-threads",
      quota_->cpus, quota_->file, last_ - told_);
  told_ = last_;
  told_at_ = now;
  return text;
}

}  // namespace kt::topology
