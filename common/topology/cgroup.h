// SPDX-License-Identifier: Apache-2.0
// What control groups grant this process: CPU quota and memory limit, versions 1 and 2, the
// tightest of all levels from the process's own group up to the mount's root (a limit on any
// ancestor holds). Reads files at each call, keeps nothing.
#ifndef KT_COMMON_TOPOLOGY_CGROUP_H_
#define KT_COMMON_TOPOLOGY_CGROUP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kt::topology {

struct CpuQuota {
  double cpus = 0;        // CPU seconds a second
  std::string file;       // that states it: ".../cpu.max" or ".../cpu.cfs_quota_us"
  std::string stat_file;  // cpu.stat of the same group
};

struct MemoryLimit {
  int64_t bytes = 0;
  std::string file;
};

// nullopt: none set, or control groups are not mounted.
std::optional<CpuQuota> ReadCpuQuota(const std::string& root = "");
std::optional<MemoryLimit> ReadMemoryLimit(const std::string& root = "");

// How many periods the group has been throttled in since it was made; 0 where the file does not
// say.
int64_t ReadThrottleCount(const CpuQuota& quota);

// Directories of the group that `controller` ("cpu", "memory") applies to, own group first, then
// its ancestors; version 2 before version 1. A path outside the mount (container without cgroup
// namespace) stands for the mount itself.
std::vector<std::string> CgroupDirs(const std::string& controller, const std::string& root = "");

}  // namespace kt::topology

#endif  // KT_COMMON_TOPOLOGY_CGROUP_H_
