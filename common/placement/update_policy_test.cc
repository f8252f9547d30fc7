// SPDX-License-Identifier: Apache-2.0
#include "common/placement/update_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/placement/placement_heat.h"

namespace kt {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Heat = std::vector<double>;
using Set = std::vector<int>;
using Counts = std::vector<uint32_t>;

constexpr UpdatePolicy kEager{.hysteresis = 0, .sigmas = 0, .swap_cost = 0};

TEST(UpdatePolicyTest, TheHottestTakeTheColdestPlaces) {
  EXPECT_EQ(ChooseResidents(Heat{5, 90, 7, 80, 6, 1}, Set{0, 2, 4}, kEager), (Set{1, 2, 3}));
  EXPECT_EQ(ChooseResidents(Heat{5, 90, 7}, Set{}, kEager), Set{});
  EXPECT_EQ(ChooseResidents(Heat{5, 90, 7}, Set{0, 1, 2}, kEager), (Set{0, 1, 2}));
}

TEST(UpdatePolicyTest, TiesChangeNothingAndGoToTheLowerId) {
  EXPECT_EQ(ChooseResidents(Heat{3, 3, 3, 3}, Set{2, 3}, kEager), (Set{2, 3}));
  EXPECT_EQ(ChooseResidents(Heat{9, 9, 9, 1, 1}, Set{3}, kEager), Set{0});
  EXPECT_EQ(ChooseResidents(Heat{1, 1, 9}, Set{0, 1}, kEager), (Set{0, 2}));
}

TEST(UpdatePolicyTest, EachMarginHoldsBack) {
  const Heat heat = {100, 110};
  EXPECT_EQ(ChooseResidents(heat, Set{0}, kEager), Set{1});
  UpdatePolicy policy = kEager;
  policy.hysteresis = 0.1;
  EXPECT_EQ(ChooseResidents(heat, Set{0}, policy), Set{0});
  policy = kEager;
  policy.sigmas = 1;  // of sqrt(210)
  EXPECT_EQ(ChooseResidents(heat, Set{0}, policy), Set{0});
  policy = kEager;
  policy.swap_cost = 10;
  EXPECT_EQ(ChooseResidents(heat, Set{0}, policy), Set{0});
  policy.swap_cost = 9;
  EXPECT_EQ(ChooseResidents(heat, Set{0}, policy), Set{1});
}

TEST(UpdatePolicyTest, OldCountsWeighHalfAfterAHalfLife) {
  Heat heat = {800, 0};
  AddCounts(Counts{0, 100}, {.half_life = 100}, heat);
  EXPECT_THAT(heat, ElementsAre(DoubleNear(400, 1e-9), 100));
}

TEST(UpdatePolicyTest, PromotionsGoByGainWithinTheBudget) {
  Placement placement{7, {{}, {0}, {0, 1}}};
  const std::vector<Heat> heat = {{}, {1, 50}, {1, 2, 90, 20}};
  const std::vector<int64_t> bytes = {0, 100, 10};
  EXPECT_THAT(ChoosePromotions(heat, placement, bytes, 1000, kEager),
              ElementsAre(Promotion{2, 2, 0}, Promotion{1, 1, 0}, Promotion{2, 3, 1}));
  const auto fit = ChoosePromotions(heat, placement, bytes, 25, kEager);
  EXPECT_THAT(fit, ElementsAre(Promotion{2, 2, 0}, Promotion{2, 3, 1}));
  ApplyPromotions(fit, &placement);
  EXPECT_EQ(placement.version, 8u);
  EXPECT_THAT(placement.device, ElementsAre(IsEmpty(), ElementsAre(0), ElementsAre(2, 3)));
  EXPECT_THAT(ChoosePromotions(heat, placement, bytes, 9, kEager), IsEmpty());
}

class PlacementHeatTest : public ::testing::Test {
 protected:
  PlacementHeatTest() {
    model_.moes.resize(1);
    model_.moes[0].num_experts = 4;
    model_.layers.resize(1);
    model_.layers[0].moe = 0;
  }
  ModelConfig model_;
};

TEST_F(PlacementHeatTest, LossesBringTheInitialResidentsBackForAWhile) {
  const UpdatePolicy policy{.half_life = 1000, .swap_cost = 1};
  PlacementHeat heat(model_, {1, {{0}}}, policy);
  const Set changed = {1};
  heat.CountHybrid(0, Counts{0, 100, 0, 0}, changed);  // wins
  EXPECT_FALSE(heat.holding());
  EXPECT_EQ(ChooseResidents(heat.heat(0), Set{0}, policy), changed);
  for (int i = 0; i < 2; ++i) heat.CountHybrid(0, Counts{100, 0, 0, 0}, changed);
  EXPECT_TRUE(heat.holding());
  EXPECT_EQ(ChooseResidents(heat.heat(0), Set{3}, policy), Set{0});

  int held = 0;  // not longer than it says
  for (; heat.holding(); ++held) heat.CountHybrid(0, Counts{0, 0, 100, 0}, Set{0});
  EXPECT_EQ(held, 80);
  EXPECT_EQ(ChooseResidents(heat.heat(0), Set{0}, policy), Set{2});
  heat.CountChanges(30);
  for (held = 0; heat.holding(); ++held) heat.CountHybrid(0, Counts{0, 0, 100, 0}, Set{0});
  EXPECT_EQ(held, 160);
}

TEST_F(PlacementHeatTest, LayerwiseStepsSayNothingAboutResidents) {
  PlacementHeat heat(model_, {1, {{0}}}, {.half_life = 100});
  for (int i = 0; i < 100; ++i) heat.CountLayerwise(0, Counts{100, 0, 0, 0});
  EXPECT_FALSE(heat.holding());
  EXPECT_GT(heat.heat(0)[0], 150);
}

}  // namespace
}  // namespace kt
