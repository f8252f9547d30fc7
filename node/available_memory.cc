// SPDX-License-Identifier: Apache-2.0
#include "node/available_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

namespace kt {
namespace {

// First number after the word `key`; without a key the file's first number ("max" is none).
std::optional<uint64_t> ReadNumber(const std::string& path, const std::string& key = "") {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, key.size(), key) != 0) continue;
    std::istringstream rest(line.substr(key.size()));
    uint64_t value;
    if (rest >> value) return value;
    if (key.empty()) return std::nullopt;
  }
  return std::nullopt;
}

struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // key in memory.stat
};
constexpr CgroupFiles kV1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};
constexpr CgroupFiles kV2{"memory.max", "memory.current", "inactive_file "};

uint64_t LeftInCgroups(const std::string& mount, std::string path, const CgroupFiles& files) {
  uint64_t left = UINT64_MAX;
  while (true) {
    std::string folder = mount + path + "/";
    std::optional<uint64_t> limit = ReadNumber(folder + files.limit);
    std::optional<uint64_t> usage = ReadNumber(folder + files.usage);
    if (limit && usage) {
      uint64_t used =
          *usage -
          std::min(*usage, ReadNumber(folder + "memory.stat", files.reclaimable).value_or(0));
      left = std::min(left, *limit - std::min(*limit, used));
    }
    if (path.empty()) return left;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

uint64_t AvailableMemoryBytes(const std::string& root) {
  uint64_t available = UINT64_MAX;
  if (auto kib = ReadNumber(root + "/proc/meminfo", "MemAvailable:")) available = *kib * 1024;
  std::ifstream cgroups(root + "/proc/self/cgroup");
  std::string line;  // "0::/path" (v2) or "9:memory:/path" (v1)
  while (std::getline(cgroups, line)) {
    size_t first = line.find(':');
    size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    while (!path.empty() && path.back() == '/') path.pop_back();
    if (!path.empty() && path.front() != '/') continue;
    if (controllers.empty()) {
      available = std::min(available, LeftInCgroups(root + "/sys/fs/cgroup", path, kV2));
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      available = std::min(available, LeftInCgroups(root + "/sys/fs/cgroup/memory", path, kV1));
    }
  }
  return available;
}

uint64_t FreeHugetlbBytes(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  return ReadNumber(meminfo, "HugePages_Free:").value_or(0) *
         ReadNumber(meminfo, "Hugepagesize:").value_or(0) * 1024;
}

}  // namespace kt
