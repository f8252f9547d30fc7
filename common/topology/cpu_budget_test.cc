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

// A machine by hwloc's synthetic description.
Topology MakeUp(const std::string& description, const std::string& allowed = "") {
  const FakeRoot dir;
  const std::string file = dir.path() + "/machine.xml";
  hwloc_topology_t made_up;
  EXPECT_EQ(hwloc_topology_init(&made_up), 0);
  EXPECT_EQ(hwloc_topology_set_synthetic(made_up, description.c_str()), 0) << description;
  EXPECT_EQ(hwloc_topology_load(made_up), 0);
  EXPECT_EQ(hwloc_topology_export_xml(made_up, file.c_str(), 0), 0);
  hwloc_topology_destroy(made_up);
  auto topology = Topology::Load({file, allowed});
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
  EXPECT_THAT(plan.devices[0].pins, ElementsAre(CpuSet{14}));  // the core that was left
  EXPECT_EQ(plan.wait.spin_us, kWaitOnOwnCores.spin_us);
}

TEST(SplitThreadsTest, DeviceFloatsWhereNoCoreIsLeft) {
  const ThreadPlan plan =
      Split({.expert_threads = 2, .workers = 1, .device_threads = 2}, Load("one_node"));
  EXPECT_THAT(plan.devices[0].pins, ElementsAre(CpuSet{0, 1}, CpuSet{0, 1}));
  EXPECT_EQ(plan.wait.spin_us, kWaitOnSharedCores.spin_us);
}

TEST(SplitThreadsTest, RanksShareTheDevicesThreads) {
  const Topology topology = Load("two_nodes_smt");  // 8 cores
  ThreadRequest request{.expert_threads = 3, .workers = 1, .device_threads = 5, .device_ranks = 2};
  ThreadPlan plan = Split(request, topology);
  ASSERT_THAT(plan.devices, SizeIs(2));
  EXPECT_THAT(plan.devices[0].pins, ElementsAre(CpuSet{6}, CpuSet{8}, CpuSet{10}));
  EXPECT_THAT(plan.devices[1].pins, ElementsAre(CpuSet{12}, CpuSet{14}));
  // One thread each at least, on cores of their own while there are any.
  request.device_ranks = 5;
  request.device_threads = 1;
  plan = Split(request, topology);
  std::set<CpuSet> pins;
  for (const WorkerThreads& rank : plan.devices) {
    ASSERT_THAT(rank.pins, SizeIs(1));
    pins.insert(rank.pins[0]);
  }
  EXPECT_THAT(pins, SizeIs(5));
  // Else nobody is tied to a core of another.
  request.device_ranks = 8;
  for (const WorkerThreads& rank : Split(request, topology).devices)
    EXPECT_THAT(rank.pins[0], SizeIs(16));
  request.device_ranks = 0;
  EXPECT_FALSE(SplitThreads(request, topology).ok());
}

TEST(SplitThreadsTest, UnderAQuotaTheDeviceTakesTurnsOnTheExpertsCores) {
  const Topology topology = Load("two_nodes_smt");
  ThreadRequest request{.expert_threads = 3, .workers = 1, .device_threads = 2, .usable_cores = 3};
  ThreadPlan plan = Split(request, topology);
  EXPECT_THAT(plan.experts[0].pins, ElementsAre(CpuSet{0}, CpuSet{2}, CpuSet{4}));
  EXPECT_THAT(plan.devices[0].pins, ElementsAre(CpuSet{0, 2, 4}, CpuSet{0, 2, 4}));
  EXPECT_EQ(plan.wait.spin_us, kWaitOnSharedCores.spin_us);
  request.usable_cores = 5;  // pays for both
  plan = Split(request, topology);
  EXPECT_THAT(plan.devices[0].pins, ElementsAre(CpuSet{6}, CpuSet{8}));
  EXPECT_EQ(plan.wait.spin_us, kWaitOnOwnCores.spin_us);
  request.device_threads = 4;
  EXPECT_THAT(Split(request, topology).devices[0].pins[0],
              SizeIs(16));  // more than the experts have
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
  EXPECT_EQ(plan.wait.spin_us, kWaitOnSharedCores.spin_us);
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

TEST(SplitThreadsTest, FastMemoryBesideTheCpusOwnGetsNoWorkers) {
  // Two nodes local to the same CPUs, as of a processor with memory on its package.
  const Topology topology = MakeUp("pack:2 [numa(memory=64GB)] [numa(memory=16GB)] core:4 pu:1");
  ASSERT_THAT(topology.nodes(), SizeIs(4));
  const ThreadPlan plan =
      Split({.expert_threads = 8, .workers = DefaultWorkers(topology, 8)}, topology);
  ASSERT_THAT(plan.experts, SizeIs(2));
  for (const WorkerThreads& worker : plan.experts) {
    EXPECT_EQ(topology.FindNode(worker.memory_node)->memory_bytes, 64000000000);
    EXPECT_THAT(worker.pins, SizeIs(4));
  }
}

TEST(SplitThreadsTest, ManyNodesGetAWorkerEach) {
  const Topology topology = MakeUp("pack:2 numa:4(memory=32GB) core:8 pu:2");
  const ThreadPlan plan =
      Split({.expert_threads = 58, .workers = DefaultWorkers(topology, 58)}, topology);
  ASSERT_THAT(plan.experts, SizeIs(8));
  std::set<CpuSet> pins;
  for (int w = 0; w < 8; ++w) {
    EXPECT_EQ(plan.experts[w].node, w);
    EXPECT_EQ(plan.experts[w].memory_node, w);
    EXPECT_THAT(plan.experts[w].pins, SizeIs(w < 2 ? 8 : 7));
    pins.insert(plan.experts[w].pins.begin(), plan.experts[w].pins.end());
  }
  EXPECT_THAT(pins, SizeIs(58));
  EXPECT_THAT(plan.warnings, IsEmpty());
}

TEST(SplitThreadsTest, NamedNodesKeepTheirNumbersWhereSomeAreMissing) {
  const Topology topology = Load("odd_nodes");
  const ThreadPlan plan = Split({.expert_threads = 2, .workers = 1, .nodes = {2}}, topology);
  EXPECT_EQ(plan.experts[0].node, 2);
  EXPECT_THAT(plan.experts[0].pins, ElementsAre(CpuSet{2}, CpuSet{3}));
  const ThreadRequest memory_only{.expert_threads = 2, .workers = 1, .nodes = {4}};
  EXPECT_THAT(Message(SplitThreads(memory_only, topology).status()),
              HasSubstr("--kt-numa-nodes 4: no CPU that this process may use is on that node; "
                        "choose from 0, 2"));
}

TEST(SplitThreadsTest, ThreadsGoWhereCoresAreFree) {
  const Topology topology = Load("two_nodes_smt", "6-13");  // one core of node 0, three of node 1
  const ThreadPlan plan = Split({.expert_threads = 4, .workers = 2}, topology);
  EXPECT_EQ(plan.experts[0].node, 1);  // most cores first
  EXPECT_THAT(plan.experts[0].pins, ElementsAre(CpuSet{8}, CpuSet{10}, CpuSet{12}));
  EXPECT_EQ(plan.experts[1].node, 0);
  EXPECT_THAT(plan.experts[1].pins, ElementsAre(CpuSet{6}));
  EXPECT_THAT(plan.warnings, IsEmpty());

  const Topology lopsided = MakeUp("pack:2 numa:1 core:8 pu:1", "7-15");
  const ThreadPlan held_up = Split({.expert_threads = 9, .workers = 2}, lopsided);
  EXPECT_THAT(held_up.experts[0].pins, SizeIs(8));
  EXPECT_THAT(held_up.experts[1].pins, SizeIs(1));
  ASSERT_THAT(held_up.warnings, SizeIs(1));
  EXPECT_THAT(held_up.warnings[0], HasSubstr("NUMA node 0 has 1 usable core, so it has 1 thread"));
}

TEST(DefaultWorkersTest, OneANodeThatPullsItsWeight) {
  EXPECT_EQ(DefaultWorkers(Load("one_node"), 2), 1);
  EXPECT_EQ(DefaultWorkers(Load("four_nodes"), 8), 4);
  EXPECT_EQ(DefaultWorkers(Load("four_nodes"), 3), 3);             // by quota or by hand
  EXPECT_EQ(DefaultWorkers(Load("odd_nodes"), 4), 2);              // one node has memory only
  EXPECT_EQ(DefaultWorkers(Load("two_nodes_smt", "4-11"), 4), 2);  // two cores each
  EXPECT_EQ(DefaultWorkers(Load("two_nodes_smt", "6-15"), 5), 1);  // one core and four
  EXPECT_EQ(DefaultWorkers(Load("two_nodes_smt", "3"), 1), 1);
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
