// SPDX-License-Identifier: Apache-2.0
#include "common/topology/cgroup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/topology/fake_root.h"

namespace kt::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kV2Mount[] =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

TEST(CgroupTest, Version2TakesTheTightestLevelUpToTheMount) {
  FakeRoot root;
  root.Write("/proc/self/mountinfo", kV2Mount);
  root.Write("/proc/self/cgroup", "0::/slice/service\n");
  root.Write("/sys/fs/cgroup/slice/service/cpu.max", "max 100000\n");
  root.Write("/sys/fs/cgroup/slice/cpu.max", "250000 100000\n");
  root.Write("/sys/fs/cgroup/slice/cpu.stat", "usage_usec 5\nnr_periods 9\nnr_throttled 4\n");
  root.Write("/sys/fs/cgroup/slice/service/memory.max", "4096000\n");
  root.Write("/sys/fs/cgroup/slice/memory.max", "8192000\n");

  EXPECT_THAT(CgroupDirs("cpu", root.path()),
              ElementsAre(root.path() + "/sys/fs/cgroup/slice/service",
                          root.path() + "/sys/fs/cgroup/slice", root.path() + "/sys/fs/cgroup"));
  const auto quota = ReadCpuQuota(root.path());
  ASSERT_TRUE(quota);
  EXPECT_DOUBLE_EQ(quota->cpus, 2.5);
  EXPECT_EQ(quota->file, root.path() + "/sys/fs/cgroup/slice/cpu.max");
  EXPECT_EQ(ReadThrottleCount(*quota), 4);
  root.Write("/sys/fs/cgroup/slice/cpu.stat", "nr_throttled 11\n");
  EXPECT_EQ(ReadThrottleCount(*quota), 11);
  const auto limit = ReadMemoryLimit(root.path());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->bytes, 4096000);
  EXPECT_EQ(limit->file, root.path() + "/sys/fs/cgroup/slice/service/memory.max");
}

TEST(CgroupTest, Version1InAContainerReadsTheMountItself) {
  FakeRoot root;
  root.Write("/proc/self/mountinfo",
             "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
             "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
             "33 31 0:30 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  root.Write("/proc/self/cgroup", "3:memory:/docker/abc/inner\n2:cpu,cpuacct:/docker/abc\n0::/\n");
  root.Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n");
  root.Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  root.Write("/sys/fs/cgroup/cpu,cpuacct/cpu.stat", "nr_periods 3\nnr_throttled 2\n");
  root.Write("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "9223372036854771712\n");
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n");

  const auto quota = ReadCpuQuota(root.path());
  ASSERT_TRUE(quota);
  EXPECT_DOUBLE_EQ(quota->cpus, 1.5);
  EXPECT_EQ(ReadThrottleCount(*quota), 2);
  EXPECT_EQ(ReadMemoryLimit(root.path())->bytes, 1048576);
}

TEST(CgroupTest, PathOutsideTheNamespaceStandsForTheMount) {
  FakeRoot root;
  root.Write("/proc/self/mountinfo", kV2Mount);
  root.Write("/proc/self/cgroup", "0::/../../other\n");
  EXPECT_THAT(CgroupDirs("cpu", root.path()), ElementsAre(root.path() + "/sys/fs/cgroup"));
}

TEST(CgroupTest, NothingSetNothingMountedOrGarbageMeansNoLimit) {
  FakeRoot root;
  EXPECT_THAT(CgroupDirs("cpu", root.path()), IsEmpty());
  EXPECT_FALSE(ReadCpuQuota(root.path()));
  root.Write("/proc/self/mountinfo", kV2Mount);
  root.Write("/proc/self/cgroup", "0::/\n");
  for (const char* text : {"", "max", "max 100000", "0 100000", "-5 100000", "x y", "100000 0",
                           "99999999999999999999 1"}) {
    root.Write("/sys/fs/cgroup/cpu.max", text);
    EXPECT_FALSE(ReadCpuQuota(root.path())) << text;
  }
  root.Write("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_FALSE(ReadMemoryLimit(root.path()));
}

}  // namespace
}  // namespace kt::topology
