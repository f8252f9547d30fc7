// SPDX-License-Identifier: Apache-2.0
#include "common/placement/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

ModelConfig Model(int layers, int experts) {  // behind a dense one
  ModelConfig model;
  model.moes.resize(1);
  model.moes[0].num_experts = experts;
  model.layers.resize(static_cast<size_t>(layers) + 1);
  for (size_t l = 1; l < model.layers.size(); ++l) model.layers[l].moe = 0;
  return model;
}

int64_t Count(const Placement& placement) {
  int64_t count = 0;
  for (const auto& set : placement.device) count += static_cast<int64_t>(set.size());
  return count;
}

TEST(StrategyTest, UniformGivesTheRemainderToTheFirstLayers) {
  const ModelConfig model = Model(3, 4);
  EXPECT_THAT(
      PlaceExperts(PlacementStrategy::kUniform, 8, model).device,
      ElementsAre(IsEmpty(), ElementsAre(0, 1, 2), ElementsAre(0, 1, 2), ElementsAre(0, 1)));
  EXPECT_EQ(Count(PlaceExperts(PlacementStrategy::kUniform, 100, model)), 12);
}

TEST(StrategyTest, UniformFillsLayersOfDifferentSizes) {
  ModelConfig model = Model(2, 4);
  model.moes.push_back(model.moes[0]);
  model.moes[1].num_experts = 1;
  model.layers[1].moe = 1;
  EXPECT_THAT(PlaceExperts(PlacementStrategy::kUniform, 4, model).device,
              ElementsAre(IsEmpty(), ElementsAre(0), ElementsAre(0, 1, 2)));
}

TEST(StrategyTest, FrontLoadingFillsLayerAfterLayer) {
  EXPECT_THAT(PlaceExperts(PlacementStrategy::kFrontLoading, 6, Model(3, 4)).device,
              ElementsAre(IsEmpty(), ElementsAre(0, 1, 2, 3), ElementsAre(0, 1), IsEmpty()));
}

TEST(StrategyTest, RandomIsReproducibleAndSpread) {
  const ModelConfig model = Model(20, 64);
  const Placement a = PlaceExperts(PlacementStrategy::kRandom, 640, model);
  EXPECT_EQ(a.device, PlaceExperts(PlacementStrategy::kRandom, 640, model).device);
  EXPECT_NE(a.device, PlaceExperts(PlacementStrategy::kRandom, 640, model, {}, 43).device);
  EXPECT_EQ(Count(a), 640);
  for (size_t l = 1; l < a.device.size(); ++l) {
    EXPECT_GT(a.device[l].size(), 16u);
    EXPECT_LT(a.device[l].size(), 48u);
    EXPECT_TRUE(std::is_sorted(a.device[l].begin(), a.device[l].end()));
  }
}

TEST(StrategyTest, FrequencyTakesTheMostUsedOfAllLayers) {
  const std::vector<std::vector<double>> use = {{}, {1, 9, 1, 8}, {1, 2, 1, 1}};
  const ModelConfig model = Model(2, 4);
  EXPECT_THAT(PlaceExperts(PlacementStrategy::kFrequency, 4, model, use).device,
              ElementsAre(IsEmpty(), ElementsAre(0, 1, 3), ElementsAre(1)));  // ties: lower layer
  EXPECT_THAT(PlaceExperts(PlacementStrategy::kFrequency, 0, model, use).device, SizeIs(3));
}

TEST(StrategyTest, NamesAreThoseOfTheFlag) {
  EXPECT_TRUE(ParsePlacementStrategy("front-loading").ok());
  EXPECT_EQ(ParsePlacementStrategy("best").status().message(),
            "--kt-expert-placement-strategy best: must be one of uniform, front-loading, random, "
            "frequency");
}

}  // namespace
}  // namespace kt
