// SPDX-License-Identifier: Apache-2.0
#include "node/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace kt {
namespace {

class AvailableMemoryTest : public ::testing::Test {
 protected:
  AvailableMemoryTest() : root_(::testing::TempDir() + "available_memory") {
    std::filesystem::remove_all(root_);
  }
  ~AvailableMemoryTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(AvailableMemoryTest, MachineWithoutLimits) {
  Write("/proc/meminfo", "MemTotal: 2000 kB\nMemAvailable:    1000 kB\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 1000u * 1024);
}

TEST_F(AvailableMemoryTest, LowestLimitOfNestedCgroups) {
  Write("/proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/b/memory.current", "1\n");
  Write("/sys/fs/cgroup/a/memory.max", "500000\n");
  Write("/sys/fs/cgroup/a/memory.current", "300000\n");
  Write("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 50000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 250000u);
}

TEST_F(AvailableMemoryTest, FirstVersionCgroup) {
  Write("/proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("/proc/self/cgroup", "3:cpu,cpuacct:/x\n2:memory:/x\n");
  Write("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "4000\n");
  Write("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "5000\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), 0u);
}

TEST_F(AvailableMemoryTest, NothingReadableIsNoLimit) {
  Write("/proc/self/cgroup", "garbage\n0::no-slash\n");
  EXPECT_EQ(AvailableMemoryBytes(root_), UINT64_MAX);
}

}  // namespace
}  // namespace kt
