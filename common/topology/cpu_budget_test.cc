// SPDX-License-Identifier: Apache-2.0
#include "common/topology/cpu_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/base/status.h"
#include "common/topology/fake_root.h"

namespace kt::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Topology Load(const std::string& name, const std::string& allowed = "") {
  auto topology = Topology::Load({KT_SOURCE_DIR "/tests/data/topology/" + name + ".xml", allowed});
  EXPECT_TRUE(topology.ok()) << topology.status();
  return std::move(topology).value();
}

ThreadPlan Split(const ThreadRequest& request, const Topology& topology) {
  auto plan = SplitThreads(request, topology);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return std::move(plan).value();
}

class BudgetTest : public testing::Test {
 protected:
  CpuBudget Measure(const std::string& cpu_max, const Topology& topology) {
    root_.Write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    root_.Write("/proc/self/cgroup", "0::/\n");
    root_.Write("/sys/fs/cgroup/cpu.max", cpu_max);
    root_.Write("/sys/fs/cgroup/cpu.stat", "nr_throttled 3\n");
    return MeasureCpuBudget(topology, root_.path());
  }
  FakeRoot root_;
};

TEST_F(BudgetTest, NinetyPercentOfPhysicalCoresWithoutQuota) {
  const CpuBudget budget = Measure("max 100000", Load("two_nodes_smt"));
  EXPECT_EQ(budget.usable_cores, 8);
  EXPECT_EQ(budget.allowed_pus, 16);
  EXPECT_EQ(DefaultCpuThreads(budget), 7);
  EXPECT_EQ(ThrottleCount(budget), 0);
  EXPECT_EQ(Describe(budget), "8 of 8 cores (16 hardware threads)");
}

TEST_F(BudgetTest, QuotaIsRoundedDownButNeverToNothing) {
  const Topology topology = Load("two_nodes_smt");
  const CpuBudget budget = Measure("390000 100000", topology);
  EXPECT_EQ(budget.usable_cores, 3);
  EXPECT_EQ(DefaultCpuThreads(budget), 3);
  EXPECT_EQ(ThrottleCount(budget), 3);
  EXPECT_THAT(Describe(budget), HasSubstr("quota of 3.90 CPUs in"));
  EXPECT_EQ(DefaultCpuThreads(Measure("10000 100000", topology)), 1);
  EXPECT_EQ(DefaultCpuThreads(Measure("9000000 100000", topology)), 7);
}

TEST_F(BudgetTest, NinetyPercentOfTwoCoresAreBoth) {
  const CpuBudget budget = Measure("max 100000", Load("two_nodes_smt", "0-3"));
  EXPECT_EQ(budget.usable_cores, 2);
  EXPECT_EQ(DefaultCpuThreads(budget), 2);
}

TEST_F(BudgetTest, AnAffinityMaskOfOneCpuGivesOneThread) {
  const CpuBudget budget = Measure("max 100000", Load("two_nodes_smt", "3"));
  EXPECT_EQ(budget.usable_cores, 1);
  EXPECT_EQ(DefaultCpuThreads(budget), 1);
}

TEST(SplitThreadsTest, OneWorkerPerNodeOnePhysicalCorePerThread) {
  const ThreadPlan plan =
      Split({.expert_threads = 7, .workers = 2, .device_threads = 1}, Load("two_nodes_smt"));
  EXPECT_THAT(plan.warnings, IsEmpty());
  ASSERT_THAT(plan.experts, SizeIs(2));
  EXPECT_EQ(plan.experts[0].node, 0);
  EXPECT_EQ(plan.experts[1].node, 1);
  EXPECT_EQ(plan.experts[1].memory_node, 1);
  EXPECT_THAT(plan.experts[0].pins, ElementsAre(CpuSet{0}, CpuSet{2}, CpuSet{4}, CpuSet{6}));
  EXPECT_THAT(plan.experts[1].pins, ElementsAre(CpuSet{8}, CpuSet{10}, CpuSet{12}));
  EXPECT_THAT(plan.device.pins, ElementsAre(CpuSet{14}));  // the core that was left
}

TEST(SplitThreadsTest, DeviceFloatsWhereNoCoreIsLeft) {
  const ThreadPlan plan =
      Split({.expert_threads = 2, .workers = 1, .device_threads = 2}, Load("one_node"));
  EXPECT_THAT(plan.device.pins, ElementsAre(CpuSet{0, 1}, CpuSet{0, 1}));
}

TEST(SplitThreadsTest, StaysInsideTheMask) {
  const Topology topology = Load("two_nodes_smt", "2,3,10");
  const ThreadPlan plan = Split({.expert_threads = 2, .workers = 2}, topology);
  EXPECT_THAT(plan.experts[0].pins, ElementsAre(CpuSet{2}));
  EXPECT_THAT(plan.experts[1].pins, ElementsAre(CpuSet{10}));
}

TEST(SplitThreadsTest, MoreWorkersThanNodesShareNodesWithAWarning) {
  const ThreadPlan plan = Split({.expert_threads = 8, .workers = 4}, Load("two_nodes_smt"));
  ASSERT_THAT(plan.warnings, SizeIs(1));
  EXPECT_THAT(plan.warnings[0], HasSubstr("2 usable NUMA nodes"));
  std::set<CpuSet> pins;
  for (const WorkerThreads& worker : plan.experts) {
    EXPECT_THAT(worker.pins, SizeIs(2));
    pins.insert(worker.pins.begin(), worker.pins.end());
  }
  EXPECT_THAT(pins, SizeIs(8));  // no two threads on one core
  EXPECT_EQ(plan.experts[2].node, 0);

  EXPECT_THAT(Split({.expert_threads = 2, .workers = 2}, Load("one_node")).warnings, SizeIs(1));
}

TEST(SplitThreadsTest, SiblingsAndThenTheWholeNodeWhenCoresRunOut) {
  const ThreadPlan plan = Split({.expert_threads = 3, .workers = 1}, Load("two_nodes_smt", "4-5"));
  EXPECT_THAT(plan.experts[0].pins, ElementsAre(CpuSet{4}, CpuSet{5}, CpuSet{4, 5}));
  ASSERT_THAT(plan.warnings, SizeIs(1));
  EXPECT_THAT(plan.warnings[0], HasSubstr("--kt-cpuinfer 3: more threads than the 1 usable cores"));
}

TEST(SplitThreadsTest, EveryWorkerGetsAThread) {
  const ThreadPlan plan = Split({.expert_threads = 1, .workers = 2}, Load("two_nodes_smt"));
  EXPECT_THAT(plan.experts[1].pins, SizeIs(1));
  ASSERT_THAT(plan.warnings, SizeIs(1));
  EXPECT_THAT(plan.warnings[0], HasSubstr("raised to 2"));
}

TEST(SplitThreadsTest, OneWorkerSpansNodesOnlyWhenItsThreadsNeedThem) {
  const Topology topology = Load("four_nodes");
  const ThreadPlan small = Split({.expert_threads = 2, .workers = 1}, topology);
  EXPECT_EQ(small.experts[0].node, 0);
  EXPECT_THAT(small.warnings, IsEmpty());
  const ThreadPlan large = Split({.expert_threads = 8, .workers = 1}, topology);
  EXPECT_EQ(large.experts[0].node, -1);
  EXPECT_EQ(large.experts[0].memory_node, -1);
  EXPECT_THAT(large.experts[0].pins, SizeIs(8));
  ASSERT_THAT(large.warnings, SizeIs(1));
  EXPECT_THAT(large.warnings[0], HasSubstr("use --kt-threadpool-count 4"));
}

TEST(SplitThreadsTest, NamedNodes) {
  const Topology topology = Load("four_nodes");
  const ThreadPlan plan = Split({.expert_threads = 4, .workers = 2, .nodes = {3, 1}}, topology);
  EXPECT_EQ(plan.experts[0].node, 3);
  EXPECT_THAT(plan.experts[0].pins, ElementsAre(CpuSet{6}, CpuSet{7}));
  EXPECT_EQ(plan.experts[1].node, 1);
  const ThreadRequest unknown{.expert_threads = 4, .workers = 2, .nodes = {0, 9}};
  EXPECT_THAT(Message(SplitThreads(unknown, topology).status()),
              HasSubstr("choose from 0, 1, 2, 3"));
  const ThreadRequest too_few{.expert_threads = 4, .workers = 2, .nodes = {0}};
  EXPECT_THAT(Message(SplitThreads(too_few, topology).status()), HasSubstr("one node per worker"));
}

TEST(SplitThreadsTest, MemoryOnlyNodesGetNoWorkers) {
  const ThreadPlan plan = Split({.expert_threads = 4, .workers = 2}, Load("odd_nodes"));
  EXPECT_EQ(plan.experts[0].node, 0);
  EXPECT_EQ(plan.experts[1].node, 2);
  EXPECT_EQ(plan.experts[1].memory_node, -1);  // its CPUs have no memory of their own
}

TEST(SplitThreadsTest, RefusesCountsBelowOne) {
  const Topology topology = Load("one_node");
  EXPECT_THAT(Message(SplitThreads({.expert_threads = 0, .workers = 1}, topology).status()),
              HasSubstr("--kt-cpuinfer 0"));
  EXPECT_THAT(Message(SplitThreads({.expert_threads = 1, .workers = 0}, topology).status()),
              HasSubstr("--kt-threadpool-count 0"));
}

}  // namespace
}  // namespace kt::topology
