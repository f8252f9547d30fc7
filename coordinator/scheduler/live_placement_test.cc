// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/live_placement.h"

#include <gtest/gtest.h>

#include "common/base/status.h"

namespace kt {
namespace {

// A dense layer, then two of 4 experts with 2 residents each.
struct LivePlacementTest : ::testing::Test {
  static ModelConfig Config() {
    ModelConfig config;
    config.moes.push_back({.num_experts = 4, .top_k = 2});
    config.layers.resize(3);
    config.layers[1].moe = config.layers[2].moe = 0;
    return config;
  }

  static proto::StepResult Result(uint64_t version) {
    proto::StepResult result;
    result.set_mode(proto::STEP_MODE_LAYERWISE);
    result.set_placement_version(version);
    for (int l : {1, 2}) {
      proto::LayerExpertCounts* counts = result.add_expert_counts();
      counts->set_layer(l);
      for (uint32_t count : {0, 1, 2, 3}) counts->add_counts(count);
    }
    return result;
  }
  static void AddResidents(int layer, std::vector<int> experts, proto::StepResult& result) {
    proto::LayerResidents* r = result.add_residents();
    r->set_layer(layer);
    r->mutable_experts()->Add(experts.begin(), experts.end());
  }
  proto::StepPlan Plan(proto::StepMode mode) const {
    proto::StepPlan plan;
    plan.set_mode(mode);
    placement.FillPlan(&plan);
    return plan;
  }

  LivePlacement placement{Config(), {.device = {{}, {0, 1}, {0, 1}}}};
};

TEST_F(LivePlacementTest, OnePlacementStaysWhateverResultsSay) {
  LivePlacement fixed;
  EXPECT_TRUE(fixed.OnResult(Result(7)).ok());
  proto::StepPlan plan;
  plan.set_mode(proto::STEP_MODE_LAYERWISE);
  fixed.FillPlan(&plan);
  EXPECT_EQ(plan.placement_version(), 1u);
  EXPECT_EQ(plan.heat_size(), 0);
}

TEST_F(LivePlacementTest, LayerwisePlansCarryTheHeatOfEarlierSteps) {
  ASSERT_EQ(Message(placement.OnResult(Result(1))), "");
  EXPECT_EQ(Plan(proto::STEP_MODE_HYBRID).heat_size(), 0);
  const proto::StepPlan plan = Plan(proto::STEP_MODE_LAYERWISE);
  ASSERT_EQ(plan.heat_size(), 2);
  EXPECT_EQ(plan.heat(0).layer(), 1);
  ASSERT_EQ(plan.heat(0).experts_size(), 4);
  EXPECT_EQ(plan.heat(0).experts(0), 0);
  EXPECT_EQ(plan.heat(0).experts(3), 3);
}

TEST_F(LivePlacementTest, TheNextPlanNamesTheVersionOfTheLastResult) {
  proto::StepResult result = Result(2);
  AddResidents(1, {1, 3}, result);
  ASSERT_EQ(Message(placement.OnResult(result)), "");
  EXPECT_EQ(Plan(proto::STEP_MODE_HYBRID).placement_version(), 2u);
  EXPECT_EQ(placement.changes(), 1u) << "3 has come, 1 was there";
}

TEST_F(LivePlacementTest, AttachedWorkersBeginAtTheStart) {
  proto::StepResult result = Result(2);
  AddResidents(1, {2, 3}, result);
  ASSERT_TRUE(placement.OnResult(result).ok());
  placement.OnAttached();
  EXPECT_EQ(Plan(proto::STEP_MODE_HYBRID).placement_version(), 1u);
  ASSERT_TRUE(placement.OnResult(result).ok());
  EXPECT_EQ(placement.changes(), 4u) << "the same two have come again";
}

TEST_F(LivePlacementTest, ResultsThatCannotBeAreRefusedWhole) {
  const auto refused = [&](auto change) {
    proto::StepResult result = Result(2);
    change(result);
    return !placement.OnResult(result).ok();
  };
  EXPECT_TRUE(refused([](auto& r) { r.mutable_expert_counts(0)->set_layer(0); })) << "dense";
  EXPECT_TRUE(refused([](auto& r) { r.mutable_expert_counts(0)->set_layer(-1); }));
  EXPECT_TRUE(refused([](auto& r) { r.mutable_expert_counts(0)->add_counts(1); }));
  EXPECT_TRUE(refused([](auto& r) { AddResidents(1, {1}, r); })) << "one of two slots";
  EXPECT_TRUE(refused([](auto& r) { AddResidents(1, {3, 1}, r); }));
  EXPECT_TRUE(refused([](auto& r) { AddResidents(1, {1, 1}, r); }));
  EXPECT_TRUE(refused([](auto& r) { AddResidents(1, {1, 4}, r); }));
  EXPECT_TRUE(refused([](auto& r) { AddResidents(1, {-1, 2}, r); }));
  EXPECT_TRUE(refused([](auto& r) { AddResidents(3, {1, 2}, r); }));
  EXPECT_EQ(placement.version(), 1u);
}

}  // namespace
}  // namespace kt
