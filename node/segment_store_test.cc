// SPDX-License-Identifier: Apache-2.0
#include "node/segment_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::HasSubstr;

TEST(SegmentStoreTest, CreatesWholePagesAndFindsThemAgain) {
  SegmentStore store([] { return uint64_t{1} << 40; });
  absl::StatusOr<const SegmentStore::Held*> first = store.GetOrCreate("arena", 5000);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->bytes, 8192u);
  EXPECT_EQ(*store.GetOrCreate("arena", 8192), *first);
  struct stat st {};
  ASSERT_EQ(fstat((*first)->fd.get(), &st), 0);
  EXPECT_EQ(st.st_size, 8192);
  EXPECT_EQ(st.st_blocks, 0) << "the node itself allocates nothing";
}

TEST(SegmentStoreTest, RefusesWithReasons) {
  SegmentStore store([] { return uint64_t{1} << 20; });
  EXPECT_EQ(store.GetOrCreate("a b", 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.GetOrCreate("", 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.GetOrCreate("zero", 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.GetOrCreate("huge", UINT64_MAX).status().code(),
            absl::StatusCode::kInvalidArgument);
  absl::Status large = store.GetOrCreate("large", 2 << 20).status();
  EXPECT_EQ(large.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(large), HasSubstr("2097152 bytes asked for, 1048576"));
  ASSERT_TRUE(store.GetOrCreate("arena", 4096).ok());
  EXPECT_EQ(store.GetOrCreate("arena", 8192).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(store.Drop("arena").ok());
  EXPECT_EQ(store.Drop("arena").code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store.GetOrCreate("arena", 8192).ok());
}

TEST(SegmentStoreTest, HoldsWhatIsGivenOnceItIsSealed) {
  SegmentStore store([] { return uint64_t{1} << 20; });
  const auto memfd = [](int seals) {
    UniqueFd fd(memfd_create("given", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), 8192), 0);
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  };
  EXPECT_EQ(store.Find("arena").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store.Put("arena", memfd(0)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.Put("arena", UniqueFd()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.Put("a b", memfd(F_SEAL_SHRINK | F_SEAL_GROW)).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(store.Put("arena", memfd(F_SEAL_SHRINK | F_SEAL_GROW)).ok());
  EXPECT_EQ((*store.Find("arena"))->bytes, 8192u);
  EXPECT_EQ(store.Put("arena", memfd(F_SEAL_SHRINK | F_SEAL_GROW)).code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(SegmentStoreTest, CountIsBounded) {
  SegmentStore store([] { return uint64_t{1} << 40; });
  size_t created = 0;
  while (created <= SegmentStore::kSegmentsMax &&
         store.GetOrCreate("s" + std::to_string(created), 1).ok())
    ++created;
  // A small descriptor limit ends it sooner, with the same error.
  EXPECT_LE(created, SegmentStore::kSegmentsMax);
  EXPECT_EQ(store.GetOrCreate("more", 1).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace kt
