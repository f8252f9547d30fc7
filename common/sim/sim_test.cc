// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "common/sim/clock.h"
#include "common/sim/rng.h"

namespace kt {
namespace {

TEST(RngTest, MatchesThePublishedSequenceOfSplitMix64) {
  Rng rng(1234567);
  EXPECT_EQ(rng.Next(), 6457827717110365317u);
  EXPECT_EQ(rng.Next(), 3203168211198807973u);
  EXPECT_EQ(rng.Next(), 9817491932198370423u);
}

TEST(RngTest, BetweenReachesBothEnds) {
  Rng rng(1);
  bool low = false, high = false;
  for (int i = 0; i < 200; ++i) {
    const int64_t x = rng.Between(-2, 2);
    ASSERT_GE(x, -2);
    ASSERT_LE(x, 2);
    low |= x == -2;
    high |= x == 2;
  }
  EXPECT_TRUE(low && high);
}

TEST(RngTest, ChanceFollowsTheProbability) {
  Rng rng(2);
  int hits = 0;
  for (int i = 0; i < 10000; ++i) hits += rng.Chance(0.25);
  EXPECT_NEAR(hits, 2500, 200);
  EXPECT_FALSE(rng.Chance(0));
  EXPECT_TRUE(rng.Chance(1));
}

TEST(ClockTest, SimulatedTimeMovesOnlyWhenAdvanced) {
  SimulatedClock clock;
  const TimePoint start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(std::chrono::seconds(3));
  EXPECT_EQ(clock.Now() - start, std::chrono::seconds(3));
}

TEST(ClockTest, SteadyTimeDoesNotGoBack) {
  SteadyClock clock;
  const TimePoint before = clock.Now();
  EXPECT_GE(clock.Now(), before);
}

}  // namespace
}  // namespace kt
