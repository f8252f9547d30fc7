// SPDX-License-Identifier: Apache-2.0
// Threads as ranks, through one mapping.
#include "gpu_worker/collective/collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::HasSubstr;

class Group {
 public:
  explicit Group(int size, int64_t timeout_us = 60'000'000)
      : segment_(std::make_shared<Segment>(
            Segment::Create("collective", LocalGroupBytes(size)).value())) {
    for (int rank = 0; rank < size; ++rank) {
      auto joined =
          JoinLocalGroup(segment_, {.rank = rank, .size = size, .timeout_us = timeout_us});
      EXPECT_TRUE(joined.ok()) << joined.status();
      ranks_.push_back(*std::move(joined));
    }
  }
  int size() const { return static_cast<int>(ranks_.size()); }
  Collective& rank(int r) { return *ranks_[static_cast<size_t>(r)]; }
  std::shared_ptr<Segment> segment() { return segment_; }

  // f on every rank but the last `left_out`, each on a thread of its own.
  void Run(const std::function<void(Collective&)>& f, int left_out = 0) {
    std::vector<std::thread> threads;
    for (int r = 0; r < size() - left_out; ++r) threads.emplace_back([&, r] { f(rank(r)); });
    for (std::thread& t : threads) t.join();
  }

 private:
  std::shared_ptr<Segment> segment_;
  std::vector<std::unique_ptr<Collective>> ranks_;
};

std::vector<float> PartOf(int rank, int64_t n, uint32_t seed) {
  std::minstd_rand draw(seed * 31 + static_cast<uint32_t>(rank) + 1);
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<float> part(static_cast<size_t>(n));
  for (float& x : part) x = value(draw);
  return part;
}

class CollectiveTest : public ::testing::TestWithParam<int> {};

TEST_P(CollectiveTest, SumsAreAddedInRankOrderOnEveryRank) {
  Group group(GetParam());
  // Around the limits of one phase and of one chunk, and random ones.
  std::vector<int64_t> sizes{1, 7, 16383, 16384, 16385, 262144, 262151, 600001};
  std::minstd_rand draw(3);
  for (int i = 0; i < 20; ++i) sizes.push_back(1 + draw() % 40000);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t n = sizes[i];
    const auto seed = static_cast<uint32_t>(i);
    std::vector<float> want = PartOf(0, n, seed);
    for (int r = 1; r < group.size(); ++r) {
      const std::vector<float> part = PartOf(r, n, seed);
      for (size_t j = 0; j < want.size(); ++j) want[j] += part[j];
    }
    group.Run([&](Collective& c) {
      std::vector<float> x = PartOf(c.rank(), n, seed);
      ASSERT_EQ(Message(c.AllReduce(x.data(), n)), "");
      ASSERT_EQ(std::memcmp(x.data(), want.data(), want.size() * sizeof(float)), 0) << n;
    });
  }
}

TEST_P(CollectiveTest, GathersUnevenParts) {
  Group group(GetParam());
  for (int64_t unit : {0, 1, 1000, 300000}) {
    std::vector<int64_t> counts;
    std::vector<float> want;
    for (int r = 0; r < group.size(); ++r) {
      counts.push_back(r % 3 == 1 ? 0 : unit + r);
      const std::vector<float> part = PartOf(r, counts.back(), 5);
      want.insert(want.end(), part.begin(), part.end());
    }
    group.Run([&](Collective& c) {
      const std::vector<float> own = PartOf(c.rank(), counts[static_cast<size_t>(c.rank())], 5);
      std::vector<float> out(want.size());
      ASSERT_EQ(Message(c.AllGather(own.data(), counts, out.data())), "");
      ASSERT_EQ(out, want);
    });
  }
}

TEST_P(CollectiveTest, BroadcastsFromAnyRank) {
  Group group(GetParam());
  for (int root = 0; root < group.size(); ++root) {
    for (int64_t bytes : {1, 12, 3 << 20}) {
      group.Run([&](Collective& c) {
        std::vector<uint8_t> x(static_cast<size_t>(bytes), static_cast<uint8_t>(c.rank() + 1));
        ASSERT_EQ(Message(c.Broadcast(x.data(), bytes, root)), "");
        ASSERT_EQ(x, std::vector<uint8_t>(x.size(), static_cast<uint8_t>(root + 1)));
      });
    }
  }
}

TEST_P(CollectiveTest, NobodyPassesABarrierBeforeAllHaveCome) {
  Group group(GetParam());
  std::atomic<int> came{0};
  group.Run([&](Collective& c) {
    for (int round = 1; round <= 300; ++round) {
      ++came;
      ASSERT_EQ(Message(c.Barrier()), "");
      ASSERT_GE(came, round * group.size());
    }
  });
}

using Operation = std::function<absl::Status(Collective&)>;
std::vector<std::pair<std::string, Operation>> Operations(int size) {
  static std::vector<float> scratch(kLocalRanksMax * kLocalRanksMax * 400000);
  auto own = [](Collective& c) { return scratch.data() + c.rank() * kLocalRanksMax * 400000; };
  return {{"all-reduce", [=](Collective& c) { return c.AllReduce(own(c), 100); }},
          {"long all-reduce", [=](Collective& c) { return c.AllReduce(own(c), 300000); }},
          {"all-gather",
           [=](Collective& c) {
             const std::vector<int64_t> counts(static_cast<size_t>(size), 10);
             return c.AllGather(own(c), counts, own(c) + 400000);
           }},
          {"broadcast", [=](Collective& c) { return c.Broadcast(own(c), 100, 0); }},
          {"barrier", [](Collective& c) { return c.Barrier(); }}};
}

TEST_P(CollectiveTest, ARankThatNeverComesIsNamedAndTheGroupEnds) {
  if (GetParam() == 1) GTEST_SKIP() << "nobody to wait for";
  for (const auto& [name, operation] : Operations(GetParam())) {
    Group group(GetParam(), 20'000);
    std::atomic<int> deadlines{0};
    group.Run(
        [&, &operation = operation](Collective& c) {
          const absl::Status status = operation(c);
          if (absl::IsDeadlineExceeded(status)) {
            ++deadlines;
            EXPECT_THAT(Message(status), HasSubstr(std::to_string(group.size() - 1)));
          } else {
            EXPECT_TRUE(absl::IsAborted(status)) << status;
          }
        },
        1);
    EXPECT_EQ(deadlines, 1) << name;
    // Too late.
    EXPECT_TRUE(absl::IsAborted(operation(group.rank(group.size() - 1)))) << name;
    EXPECT_TRUE(absl::IsAborted(operation(group.rank(0)))) << name;
  }
}

TEST_P(CollectiveTest, AnAbortReleasesWhoWaitsInAnyOperation) {
  if (GetParam() == 1) GTEST_SKIP() << "nobody waits";
  for (const auto& [name, operation] : Operations(GetParam())) {
    Group group(GetParam());
    std::thread waiting([&, &operation = operation] {
      group.Run([&](Collective& c) { EXPECT_TRUE(absl::IsAborted(operation(c))) << c.rank(); }, 1);
    });
    group.rank(group.size() - 1).Abort();
    waiting.join();
  }
}

TEST_P(CollectiveTest, AnAbortInTheMidstOfManyOperationsReachesAll) {
  for (int round = 0; round < 20; ++round) {
    Group group(GetParam());
    std::atomic<int> done{0};
    std::thread aborter([&] {
      while (done < 50) std::this_thread::yield();
      group.rank(0).Abort();
    });
    group.Run([&](Collective& c) {
      std::vector<float> x(5000);
      absl::Status status;
      while (status.ok()) {
        status = c.AllReduce(x.data(), 5000);
        ++done;
      }
      EXPECT_TRUE(absl::IsAborted(status)) << status;
    });
    aborter.join();
  }
}

TEST_P(CollectiveTest, DifferentCallsAreFoundOut) {
  if (GetParam() == 1) GTEST_SKIP() << "nobody differs";
  Group group(GetParam());
  std::atomic<int> found{0};
  group.Run([&](Collective& c) {
    float x[2] = {};
    const absl::Status status = c.AllReduce(x, c.rank() == 0 ? 1 : 2);
    EXPECT_FALSE(status.ok());
    found += absl::IsDataLoss(status);
  });
  EXPECT_GE(found, 1);
  EXPECT_TRUE(absl::IsAborted(group.rank(0).Barrier()));
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectiveTest, ::testing::Values(1, 2, 3, 8));

TEST(LocalGroupTest, OnlyRankZeroMakesAGroupAndOnlyOnce) {
  auto segment = std::make_shared<Segment>(Segment::Create("c", LocalGroupBytes(2)).value());
  EXPECT_TRUE(absl::IsFailedPrecondition(JoinLocalGroup(segment, {.rank = 1, .size = 2}).status()));
  EXPECT_TRUE(JoinLocalGroup(segment, {.rank = 0, .size = 2}).ok());
  EXPECT_TRUE(JoinLocalGroup(segment, {.rank = 1, .size = 2}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(JoinLocalGroup(segment, {.rank = 0, .size = 2}).status()));
}

TEST(LocalGroupTest, WhatIsNoGroupOfThisShapeIsRefused) {
  auto small = std::make_shared<Segment>(Segment::Create("c", 4096).value());
  EXPECT_TRUE(absl::IsInvalidArgument(JoinLocalGroup(small, {.rank = 0, .size = 2}).status()));
  auto segment = std::make_shared<Segment>(Segment::Create("c", LocalGroupBytes(3)).value());
  EXPECT_TRUE(JoinLocalGroup(segment, {.rank = 0, .size = 3}).ok());
  EXPECT_TRUE(absl::IsDataLoss(JoinLocalGroup(segment, {.rank = 1, .size = 2}).status()));
  for (const LocalGroup& bad :
       {LocalGroup{.rank = 3, .size = 3}, LocalGroup{.rank = -1, .size = 3},
        LocalGroup{.rank = 0, .size = 0}, LocalGroup{.rank = 0, .size = kLocalRanksMax + 1}})
    EXPECT_TRUE(absl::IsInvalidArgument(JoinLocalGroup(segment, bad).status()));
  // Every byte of the header that is checked.
  for (size_t at = 0; at < 32; ++at) {
    if (at >= 12 && at < 16) continue;  // reserved
    segment->data()[at] ^= 0x40;
    EXPECT_FALSE(JoinLocalGroup(segment, {.rank = 1, .size = 3}).ok()) << at;
    segment->data()[at] ^= 0x40;
  }
  EXPECT_TRUE(JoinLocalGroup(segment, {.rank = 1, .size = 3}).ok());
}

}  // namespace
}  // namespace kt
