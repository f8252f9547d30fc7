// SPDX-License-Identifier: Apache-2.0
#include "common/ipc/segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::HasSubstr;

bool IsAligned(const Segment& segment) {
  return reinterpret_cast<uintptr_t>(segment.data()) % kHugePage == 0;
}

int64_t FreeHugetlbPages() {
  std::ifstream file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  int64_t pages = 0;
  return file >> pages ? pages : 0;
}

TEST(SegmentTest, IsSharedWithWhoGetsItsDescriptor) {
  Segment segment = Segment::Create("test", 5000).value();
  EXPECT_EQ(segment.size(), 8192u);
  segment.data()[8191] = 42;
  auto peer = Segment::FromFd(fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0), 8192);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->data()[8191], 42);
  EXPECT_NE(ftruncate(segment.fd(), 0), 0);  // sealed
  EXPECT_TRUE(absl::IsInvalidArgument(
      Segment::FromFd(fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0), 8193).status()));
}

TEST(SegmentTest, TakesNoDescriptorThatAPeerCouldTruncate) {
  EXPECT_TRUE(absl::IsFailedPrecondition(
      Segment::FromFd(memfd_create("test", MFD_ALLOW_SEALING), 0).status()));
}

TEST(SegmentTest, ReservedPagesAreThereOncePopulatedAndStayForAPeer) {
  const size_t bytes = 2 * kHugePage;
  Segment segment = Segment::Reserve("test", bytes - 1, PageKind::kTransparent).value();
  EXPECT_EQ(segment.size(), bytes);
  EXPECT_TRUE(IsAligned(segment));
  ASSERT_TRUE(segment.Populate(kHugePage, kHugePage, PageKind::kTransparent).ok());
  ASSERT_TRUE(segment.Populate(0, kHugePage, PageKind::kTransparent).ok());
  segment.data()[bytes - 1] = 1;
  const PageUse use = ReadPageUse(segment.data(), bytes);
  EXPECT_EQ(use.kind == PageKind::kTransparent, use.huge_share >= 0.5);

  auto peer = Segment::FromFd(fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0), bytes);
  ASSERT_TRUE(peer.ok());
  EXPECT_TRUE(IsAligned(*peer));
  EXPECT_EQ(peer->data()[bytes - 1], 1);
}

TEST(SegmentTest, HugetlbPagesAreTakenWhereEnoughAreFree) {
  const auto free = static_cast<size_t>(FreeHugetlbPages());
  EXPECT_TRUE(absl::IsResourceExhausted(
      Segment::Reserve("test", (free + 1) * kHugePage, PageKind::kHugetlb).status()));
  if (free < 2) GTEST_SKIP() << "no hugetlb pages are reserved; sysctl vm.nr_hugepages=2";
  Segment segment = Segment::Reserve("test", 2 * kHugePage, PageKind::kHugetlb).value();
  ASSERT_TRUE(segment.Populate(0, segment.size(), PageKind::kHugetlb).ok());
  const PageUse use = ReadPageUse(segment.data(), segment.size());
  EXPECT_EQ(use.kind, PageKind::kHugetlb);
  EXPECT_EQ(use.huge_share, 1);
  auto peer = Segment::FromFd(fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0), segment.size());
  EXPECT_TRUE(peer.ok()) << peer.status();
}

TEST(SegmentTest, MoreThanCanBeMappedIsAnErrorWithItsSize) {
  const auto segment = Segment::Create("test", size_t{1} << 50);
  EXPECT_TRUE(absl::IsResourceExhausted(segment.status()));
  EXPECT_THAT(Message(segment.status()), HasSubstr("1125899906842624 bytes"));
}

TEST(PagesTest, SmallMemoryIsMappedAsItIs) {
  uint8_t* data = MapMemory(-1, 2 * kSmallPage);
  ASSERT_NE(data, nullptr);
  data[2 * kSmallPage - 1] = 1;
  EXPECT_EQ(ReadPageUse(data, 2 * kSmallPage).huge_share, 0);
  munmap(data, 2 * kSmallPage);
}

}  // namespace
}  // namespace kt
