// SPDX-License-Identifier: Apache-2.0
#include "common/topology/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

#include <thread>

#include "common/base/status.h"

namespace kt::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Xml(const std::string& name) {
  return KT_SOURCE_DIR "/tests/data/topology/" + name + ".xml";
}

Topology LoadXml(const std::string& name, const std::string& allowed = "") {
  auto topology = Topology::Load({Xml(name), allowed});
  EXPECT_TRUE(topology.ok()) << topology.status();
  return std::move(topology).value();
}

TEST(TopologyTest, SeesCoresAndNodesOfAMachineWithHyperThreads) {
  const Topology topology = LoadXml("two_nodes_smt");
  ASSERT_EQ(topology.cores().size(), 8u);
  EXPECT_THAT(topology.cores()[5].pus, ElementsAre(10, 11));
  EXPECT_EQ(topology.cores()[5].node, 1);
  ASSERT_EQ(topology.nodes().size(), 2u);
  EXPECT_THAT(topology.nodes()[1].cores, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(topology.nodes()[1].memory_bytes, int64_t{1} << 30);
}

TEST(TopologyTest, CountsOnlyCpusInTheMask) {
  const Topology topology = LoadXml("two_nodes_smt", "1-3,9");
  EXPECT_THAT(topology.allowed_pus(), ElementsAre(1, 2, 3, 9));
  ASSERT_EQ(topology.cores().size(), 3u);
  EXPECT_THAT(topology.cores()[0].pus, ElementsAre(1));
  EXPECT_THAT(topology.cores()[1].pus, ElementsAre(2, 3));
  EXPECT_THAT(topology.cores()[2].pus, ElementsAre(9));
  EXPECT_THAT(topology.nodes()[0].cores, ElementsAre(0, 1));
  EXPECT_THAT(topology.nodes()[1].cores, ElementsAre(2));
}

TEST(TopologyTest, HandlesGapsInIdsMemoryOnlyAndCpuOnlyNodes) {
  const Topology topology = LoadXml("odd_nodes");
  ASSERT_EQ(topology.nodes().size(), 3u);
  const NumaNode& plain = *topology.FindNode(0);
  EXPECT_THAT(plain.cores, ElementsAre(0, 1));
  EXPECT_EQ(topology.FindNode(1), nullptr);
  EXPECT_THAT(topology.FindNode(2)->cores, ElementsAre(2, 3));
  EXPECT_EQ(topology.FindNode(2)->memory_bytes, 0);
  EXPECT_THAT(topology.FindNode(4)->cores, IsEmpty());
  EXPECT_EQ(topology.FindNode(4)->memory_bytes, 64000000000);
}

TEST(TopologyTest, RefusesAMaskWithoutCpusAndAMissingFile) {
  EXPECT_THAT(Message(Topology::Load({Xml("one_node"), "7"}).status()), HasSubstr("holds no CPU"));
  EXPECT_THAT(Message(Topology::Load({Xml("one_node"), "a"}).status()),
              HasSubstr("expected a list"));
  EXPECT_THAT(Message(Topology::Load({Xml("absent"), ""}).status()), HasSubstr("absent.xml"));
}

TEST(TopologyTest, ThisMachineMatchesTheAffinityMask) {
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
  const auto topology = Topology::Load();
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->allowed_pus().size(), static_cast<size_t>(CPU_COUNT(&mask)));
  EXPECT_GE(topology->nodes().size(), 1u);
}

TEST(TopologyTest, BindsAThreadAndMemoryOfThisMachine) {
  const auto topology = Topology::Load();
  ASSERT_TRUE(topology.ok());
  const int last = topology->allowed_pus().back();
  std::thread([&] {
    ASSERT_TRUE(topology->BindThread(std::vector<int>{last}).ok());
    EXPECT_EQ(sched_getcpu(), last);
  }).join();

  constexpr size_t kBytes = size_t{1} << 20;
  void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  EXPECT_TRUE(topology->BindMemory(data, kBytes, -1).ok());
  EXPECT_THAT(Message(topology->BindMemory(data, kBytes, 4711)), HasSubstr("no such node"));
  const absl::Status status = topology->BindMemory(data, kBytes, topology->nodes()[0].id);
  EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;  // a container may forbid it
  static_cast<char*>(data)[0] = 1;
  munmap(data, kBytes);
}

}  // namespace
}  // namespace kt::topology
