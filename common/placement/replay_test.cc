// SPDX-License-Identifier: Apache-2.0
#include "common/placement/testing/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kt {
namespace {

using ::testing::IsEmpty;

TEST(ReplayTest, DynamicPlacementMeetsItsBars) {
  for (ReplayCase replay : ReplayCases()) {
    replay.shape.layers = 2;
    replay.shape.conversations = 200;
    const ReplayResults results = Replay(replay);
    EXPECT_THAT(MissedBars(replay, results), IsEmpty())
        << TrafficName(replay) << " at " << replay.resident_share
        << (replay.background ? " in the background" : "") << ", seed " << replay.seed;
  }
}

TEST(ReplayTest, BarsCanBeMissed) {
  ReplayCase still{.traffic = Traffic::kZipf, .policy = {.swap_cost = 1e9}};
  still.shape.conversations = 10;
  EXPECT_FALSE(MissedBars(still, Replay(still)).empty());
}

}  // namespace
}  // namespace kt
