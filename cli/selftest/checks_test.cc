// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kt {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Positions = std::vector<PositionDifference>;

constexpr double kBound = 1;

TEST(CheckBf16MaxTest, TheLargestOfAllPositionsCounts) {
  const CheckRow row = CheckBf16Max("x", Positions{{0.2, {}}, {0.9, 3}, {0.5, {}}}, kBound);
  EXPECT_TRUE(row.ok);
  EXPECT_EQ(row.value, 0.9);
  EXPECT_EQ(row.bound, kBound);
  EXPECT_THAT(row.note, IsEmpty());
}

TEST(CheckBf16MaxTest, APositionBeyondTheBoundNeedsANearTie) {
  Positions positions(8, {0.1, std::nullopt});
  positions[5].logits_max = 7.5;
  const CheckRow fails = CheckBf16Max("x", positions, kBound);
  EXPECT_FALSE(fails.ok);
  EXPECT_EQ(fails.value, 7.5);
  EXPECT_THAT(fails.note, HasSubstr("position 5 and no near-tie"));
  positions[4].near_tie_layer = 2;  // of another position
  EXPECT_FALSE(CheckBf16Max("x", positions, kBound).ok);
  positions[5].near_tie_layer = 2;
  const CheckRow holds = CheckBf16Max("x", positions, kBound);
  EXPECT_TRUE(holds.ok);
  EXPECT_EQ(holds.value, 0.1);
  EXPECT_THAT(holds.note, HasSubstr("without 1 of 8 positions up to 7.50"));
  EXPECT_THAT(holds.note, HasSubstr("5 (layer 2)"));
}

TEST(CheckBf16MaxTest, NearTiesExcuseAQuarterOfThePositions) {
  Positions positions(8, {0.1, 1});
  positions[0].logits_max = positions[7].logits_max = 3;
  EXPECT_TRUE(CheckBf16Max("x", positions, kBound).ok);
  positions[3].logits_max = 3;
  const CheckRow row = CheckBf16Max("x", positions, kBound);
  EXPECT_FALSE(row.ok);
  EXPECT_THAT(row.note, HasSubstr("3 of 8"));
  EXPECT_THAT(row.note, HasSubstr("at most 25 %"));
}

TEST(CheckBf16MaxTest, OneExcusedPositionHidesNoOther) {
  Positions positions(8, {0.1, std::nullopt});
  positions[1] = {9, 1};
  positions[2] = {2, std::nullopt};
  const CheckRow row = CheckBf16Max("x", positions, kBound);
  EXPECT_FALSE(row.ok);
  EXPECT_EQ(row.value, 2);
}

}  // namespace
}  // namespace kt
