// SPDX-License-Identifier: Apache-2.0
#include "common/topology/cgroup.h"

#include <algorithm>
#include <charconv>

#include "common/topology/system_file.h"

namespace kt::topology {
namespace {

// A v1 limit at or above this is the kernel's way of saying "none".
constexpr int64_t kNoMemoryLimit = int64_t{1} << 60;

std::optional<int64_t> ParseInt(std::string_view text) {
  text = Trim(text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> ReadInt(const std::string& path) {
  const auto text = ReadSystemFile(path);
  return text ? ParseInt(*text) : std::nullopt;
}

bool Contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

struct Mount {
  bool v2 = false;
  std::string group;  // the group that is mounted, as /proc/self/cgroup would name it
  std::string point;
};

// mountinfo: id parent dev group point options [tags...] - type source super_options
std::vector<Mount> CgroupMounts(const std::string& controller, const std::string& root) {
  std::vector<Mount> mounts;
  for (const std::string& line :
       Split(ReadSystemFile(root + "/proc/self/mountinfo").value_or(""), '\n')) {
    const auto fields = Split(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 6 || fields.end() - dash < 4) continue;
    const std::string& type = dash[1];
    if (type == "cgroup2" || (type == "cgroup" && Contains(Split(dash[3], ','), controller))) {
      mounts.push_back({type == "cgroup2", fields[3], fields[4]});
    }
  }
  std::stable_sort(mounts.begin(), mounts.end(),
                   [](const Mount& a, const Mount& b) { return a.v2 > b.v2; });
  return mounts;
}

// The group of this process in a hierarchy, from "id:controllers:path" lines (version 2:
// "0::path").
std::optional<std::string> OwnGroup(bool v2, const std::string& controller,
                                    const std::string& root) {
  for (const std::string& line :
       Split(ReadSystemFile(root + "/proc/self/cgroup").value_or(""), '\n')) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (v2 ? controllers.empty() : Contains(Split(controllers, ','), controller))
      return line.substr(second + 1);
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> CgroupDirs(const std::string& controller, const std::string& root) {
  std::vector<std::string> dirs;
  for (const Mount& mount : CgroupMounts(controller, root)) {
    const auto group = OwnGroup(mount.v2, controller, root);
    if (!group) continue;
    std::string below = *group;
    if (mount.group != "/") {
      const bool inside = below == mount.group || below.starts_with(mount.group + "/");
      below = inside ? below.substr(mount.group.size()) : "";
    }
    if (Contains(Split(below, '/'), "..")) below.clear();
    const std::string point = root + mount.point;
    for (std::string dir = point + (below == "/" ? "" : below); dir.size() > point.size();
         dir.resize(dir.rfind('/'))) {
      dirs.push_back(dir);
    }
    dirs.push_back(point);
  }
  return dirs;
}

std::optional<CpuQuota> ReadCpuQuota(const std::string& root) {
  std::optional<CpuQuota> tightest;
  for (const std::string& dir : CgroupDirs("cpu", root)) {
    CpuQuota quota{0, dir + "/cpu.max", dir + "/cpu.stat"};
    std::optional<int64_t> budget_us, period_us;
    if (const auto text = ReadSystemFile(quota.file)) {
      const auto fields = Split(Trim(*text), ' ');
      if (fields.size() == 2) budget_us = ParseInt(fields[0]), period_us = ParseInt(fields[1]);
    } else {
      quota.file = dir + "/cpu.cfs_quota_us";
      budget_us = ReadInt(quota.file);
      period_us = ReadInt(dir + "/cpu.cfs_period_us");
    }
    if (!budget_us || !period_us || *budget_us <= 0 || *period_us <= 0) continue;
    quota.cpus = static_cast<double>(*budget_us) / static_cast<double>(*period_us);
    if (!tightest || quota.cpus < tightest->cpus) tightest = quota;
  }
  return tightest;
}

std::optional<MemoryLimit> ReadMemoryLimit(const std::string& root) {
  std::optional<MemoryLimit> tightest;
  for (const std::string& dir : CgroupDirs("memory", root)) {
    for (const char* name : {"/memory.max", "/memory.limit_in_bytes"}) {
      const auto bytes = ReadInt(dir + name);
      if (!bytes || *bytes >= kNoMemoryLimit || (tightest && tightest->bytes <= *bytes)) continue;
      tightest = MemoryLimit{*bytes, dir + name};
    }
  }
  return tightest;
}

int64_t ReadThrottleCount(const CpuQuota& quota) {
  constexpr std::string_view kField = "nr_throttled ";
  for (const std::string& line : Split(ReadSystemFile(quota.stat_file).value_or(""), '\n')) {
    if (line.starts_with(kField))
      return ParseInt(std::string_view(line).substr(kField.size())).value_or(0);
  }
  return 0;
}

}  // namespace kt::topology
