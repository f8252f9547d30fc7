// SPDX-License-Identifier: Apache-2.0
#include "common/topology/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/status.h"
#include "common/topology/fake_root.h"
#include "common/topology/refused_calls.h"
#include "common/topology/system_file.h"
#include "common/topology/thread_pool.h"

namespace kt::topology {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kBytes = 4 * kHugePage;
constexpr char kSharedPages[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

Topology Machine() { return Topology::Load().value(); }

// Two nodes that are taken for this machine's, so that binding reaches the kernel.
Topology TwoNodesAsThisMachine() {
  setenv("HWLOC_THISSYSTEM", "1", 1);
  auto topology = Topology::Load({KT_SOURCE_DIR "/tests/data/topology/two_nodes_smt.xml", ""});
  unsetenv("HWLOC_THISSYSTEM");
  EXPECT_TRUE(topology.ok()) << topology.status();
  return std::move(topology).value();
}

Arena Make(size_t bytes, const Topology& topology, int node) {
  Serial serial;
  auto arena = MakeArena("test", bytes, topology, node, serial);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return std::move(arena).value();
}

void ExpectUsable(const Arena& arena, size_t bytes) {
  uint8_t* data = arena.segment.data();
  ASSERT_GE(arena.segment.size(), bytes);
  EXPECT_EQ(std::count(data, data + arena.segment.size(), 0),
            static_cast<ptrdiff_t>(arena.segment.size()));
  std::fill_n(data, arena.segment.size(), uint8_t{7});
}

TEST(ArenaTest, LiesInHugePagesOnItsNode) {
  const Topology machine = Machine();
  const Arena arena = Make(kBytes - 5, machine, machine.nodes()[0].id);
  ExpectUsable(arena, kBytes - 5);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.segment.data()) % kHugePage, 0u);
  EXPECT_EQ(arena.facts.gbytes_per_s, 0);             // a few MiB tell nothing
  EXPECT_THAT(arena.facts.node_share, AnyOf(1, -1));  // -1: a container may forbid the question
  if (arena.facts.pages.kind == PageKind::kSmall)
    GTEST_SKIP() << "this machine has none: " << arena.facts.warning;
  EXPECT_EQ(arena.facts.pages.huge_share, 1);
  EXPECT_THAT(Describe(arena.facts), HasSubstr("pages (100 % huge), NUMA node 0"));
}

TEST(ArenaTest, ManyThreadsPutThePagesThere) {
  const Topology machine = Machine();
  ThreadPool pool(machine, "arena", std::vector<CpuSet>(4, machine.allowed_pus()));
  auto arena = MakeArena("test", 41 * kHugePage, machine, -1, pool);
  ASSERT_TRUE(arena.ok()) << arena.status();
  ExpectUsable(*arena, 41 * kHugePage);
  EXPECT_EQ(arena->facts.node_share, -1);
}

TEST(ArenaTest, SmallOnesTakeSmallPages) {
  const Arena arena = Make(5000, Machine(), -1);
  EXPECT_EQ(arena.segment.size(), 2 * kSmallPage);
  EXPECT_EQ(arena.facts.pages.kind, PageKind::kSmall);
  EXPECT_EQ(arena.facts.warning, "");
  EXPECT_EQ(Describe(arena.facts), "4 KiB pages");
}

TEST(ArenaTest, IsReadAsFastAsItCanBeTold) {
  const Arena arena = Make(size_t{64} << 20, TwoNodesAsThisMachine(), -1);  // no large caches
  EXPECT_GT(arena.facts.gbytes_per_s, 0.1);
  EXPECT_THAT(Describe(arena.facts), HasSubstr("read at "));
  EXPECT_EQ(Describe(arena.facts).find("where huge pages give ") != std::string::npos,
            arena.facts.huge_gbytes_per_s > 0);
}

TEST(ArenaTest, WithoutHugePagesItIsSlowerAndSaysSo) {
  const std::string setting = ChosenSetting(kSharedPages);
  if (setting == "always" || setting == "within_size" || setting == "force")
    GTEST_SKIP() << "this machine gives huge pages to who does not ask: " << setting;
  WithRefusedCalls(NoHugePages(), [] {
    const Arena arena = Make(kBytes, Machine(), -1);
    ExpectUsable(arena, kBytes);
    EXPECT_EQ(arena.facts.pages.kind, PageKind::kSmall);
    EXPECT_THAT(arena.facts.warning, AllOf(HasSubstr("weights lie in 4 KiB pages"),
                                           HasSubstr("as root"), HasSubstr("vm.nr_hugepages=4")));
  });
}

TEST(ArenaTest, AKernelWithoutMemoryPoliciesCostsAWarning) {
  for (int error : {ENOSYS, EPERM}) {
    const std::vector<RefusedCall> calls = {{SYS_mbind, error}, {SYS_move_pages, error}};
    WithRefusedCalls(calls, [] {
      const Topology two = TwoNodesAsThisMachine();
      EXPECT_TRUE(absl::IsUnavailable(two.BindMemory(std::vector<char>(1).data(), 1, 0)));
      const Arena arena = Make(kBytes, two, 0);
      ExpectUsable(arena, kBytes);
      EXPECT_EQ(arena.facts.node_share, -1);
      EXPECT_THAT(arena.facts.warning,
                  AllOf(HasSubstr("NUMA node 0 is not known"), HasSubstr("CAP_SYS_NICE")));
      const Topology machine = Machine();  // where there is one node, nothing is lost
      if (machine.nodes().size() > 1) return;
      EXPECT_THAT(Make(kBytes, machine, 0).facts.warning, Not(HasSubstr("not known")));
    });
  }
}

TEST(ArenaTest, PagesOnAnotherNodeAreCounted) {
  if (Machine().FindNode(1) != nullptr) GTEST_SKIP() << "this machine has a node 1";
  const Arena arena = Make(kBytes, TwoNodesAsThisMachine(), 1);
  EXPECT_EQ(arena.facts.node_share, 0);
  EXPECT_THAT(arena.facts.warning, HasSubstr("only 0 % of the weights lie on NUMA node 1"));
}

TEST(ArenaTest, AMadeUpMachineIsNotJudged) {
  auto two = Topology::Load({KT_SOURCE_DIR "/tests/data/topology/two_nodes_smt.xml", ""});
  ASSERT_TRUE(two.ok());
  const Arena arena = Make(kBytes, *two, 1);
  EXPECT_EQ(arena.facts.node_share, -1);
  EXPECT_THAT(arena.facts.warning, Not(HasSubstr("NUMA")));
}

TEST(ArenaTest, MoreThanThereIsIsAnError) {
  Serial serial;
  const auto arena = MakeArena("test", size_t{1} << 50, Machine(), -1, serial);
  EXPECT_TRUE(absl::IsResourceExhausted(arena.status())) << arena.status();
}

TEST(HugePageAdviceTest, FollowsTheMachinesSetting) {
  FakeRoot root;
  EXPECT_EQ(HugePageAdvice(3 * kHugePage - 1, root.path()), "as root: sysctl vm.nr_hugepages=3");
  root.Write(kSharedPages, "always within_size advise [never] deny force\n");
  EXPECT_THAT(HugePageAdvice(kBytes, root.path()),
              HasSubstr("echo advise > " + root.path() + kSharedPages + " or sysctl"));
  root.Write(kSharedPages, "always within_size [advise] never deny force\n");
  EXPECT_THAT(HugePageAdvice(kBytes, root.path()), HasSubstr("compact_memory=1"));
}

}  // namespace
}  // namespace kt::topology
