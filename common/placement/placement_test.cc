// SPDX-License-Identifier: Apache-2.0
#include "common/placement/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelConfig Model() {  // a dense layer, then two of 4 experts
  ModelConfig model;
  model.moes.resize(1);
  model.moes[0].num_experts = 4;
  model.layers.resize(3);
  model.layers[1].moe = model.layers[2].moe = 0;
  return model;
}

std::string Error(int layer, std::vector<int> experts) {
  proto::ExpertOptions options;
  Placement placement{1, std::vector<std::vector<int>>(static_cast<size_t>(layer) + 1)};
  placement.device.back() = std::move(experts);
  SetResidents(placement, &options);
  return Message(InitialPlacement(options, Model()).status());
}

TEST(PlacementTest, ResidentsTravelInTheConfiguration) {
  proto::ExpertOptions options;
  SetResidents({1, {{}, {0, 3}, {2}}}, &options);
  SetResidents({1, {{}, {0, 3}, {}}}, &options);  // replaces
  auto placement = InitialPlacement(options, Model());
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_THAT(placement->device, ElementsAre(IsEmpty(), ElementsAre(0, 3), IsEmpty()));
  EXPECT_THAT(placement->CpuExperts(Model()),
              ElementsAre(IsEmpty(), ElementsAre(1, 2), ElementsAre(0, 1, 2, 3)));
}

TEST(PlacementTest, WhatTheModelHasNotIsRefused) {
  EXPECT_THAT(Error(3, {0}), HasSubstr("layer 3, expected one from 0 to 2"));
  EXPECT_THAT(Error(1, {4}), HasSubstr("expert 4 of layer 1, expected one from 0 to 3"));
  EXPECT_THAT(Error(0, {0}), HasSubstr("expert 0 of layer 0"));
  EXPECT_THAT(Error(1, {2, 2}), HasSubstr("expert 2 of layer 1, expected one from 3 to 3"));
  EXPECT_THAT(Error(1, {2, 1}), HasSubstr("expert 1 of layer 1"));
  EXPECT_THAT(Error(1, {-1}), HasSubstr("expert -1 of layer 1"));
}

TEST(PlacementTest, LayersAreAscending) {
  proto::ExpertOptions options;
  options.add_residents()->set_layer(2);
  options.add_residents()->set_layer(2);
  EXPECT_THAT(Message(InitialPlacement(options, Model()).status()), HasSubstr("layer 2"));
}

}  // namespace
}  // namespace kt
