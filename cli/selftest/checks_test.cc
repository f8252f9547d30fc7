// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kt {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Positions = std::vector<PositionDifference>;

TEST(CheckBf16Test, MeanAndMaximumOfAllPositions) {
  const auto rows = CheckBf16("x", Positions{{0.1, 0.2, {}}, {0.3, 0.9, {}}}, 0.25, 1);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].name, "x mean");
  EXPECT_DOUBLE_EQ(rows[0].value, 0.2);
  EXPECT_EQ(rows[1].name, "x max");
  EXPECT_EQ(rows[1].value, 0.9);
  EXPECT_TRUE(rows[0].ok && rows[1].ok);
  EXPECT_THAT(rows[0].note, IsEmpty());
}

TEST(CheckBf16Test, EachBoundIsKept) {
  EXPECT_FALSE(CheckBf16("x", Positions{{0.3, 0.9, {}}}, 0.25, 1)[0].ok);
  EXPECT_FALSE(CheckBf16("x", Positions{{0.2, 1.1, {}}}, 0.25, 1)[1].ok);
}

TEST(CheckBf16Test, OnlyFlippedPositionsAreLeftOut) {
  Positions positions(8, {0.1, 0.5, std::nullopt});
  positions[5] = {3, 9, std::nullopt};
  EXPECT_FALSE(CheckBf16("x", positions, 0.25, 1)[1].ok);
  positions[5].flipped_layer = 2;
  const auto rows = CheckBf16("x", positions, 0.25, 1);
  EXPECT_TRUE(rows[0].ok && rows[1].ok);
  EXPECT_THAT(rows[0].note, HasSubstr("without 1 of 8 positions"));
  EXPECT_THAT(rows[0].note, HasSubstr("5 (layer 2)"));

  positions[6] = {0.1, 7, std::nullopt};
  EXPECT_TRUE(CheckBf16("x", positions, 0.25, 1)[1].ok) << "attends to a flipped position";
  positions[4] = {0.1, 7, std::nullopt};
  EXPECT_FALSE(CheckBf16("x", positions, 0.25, 1)[1].ok);
}

TEST(FlippedLayersTest, TheFirstLayerWithOtherExpertsCountsAndOrderDoesNot) {
  const std::map<int, std::vector<int32_t>> reference = {{1, {0, 1, 2, 3, 9, 9}},
                                                         {2, {4, 5, 6, 7, 9, 9}}};
  Trace trace;
  trace.routing[1].ids = {1, 0, 2, 4};
  trace.routing[2].ids = {4, 8, 6, 8};
  const auto layers = FlippedLayers(reference, trace, 2);
  ASSERT_TRUE(layers.ok());
  EXPECT_EQ((*layers)[0], 2);
  EXPECT_EQ((*layers)[1], 1);
  trace.routing.erase(2);
  EXPECT_FALSE(FlippedLayers(reference, trace, 2).ok());
}

}  // namespace
}  // namespace kt
