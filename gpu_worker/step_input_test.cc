// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/step_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <tuple>

#include "common/base/status.h"
#include "gpu_worker/device_host.h"

namespace kt {
namespace {

constexpr StepLimits kLimits{.tokens_max = 8,
                             .sequences_max = 3,
                             .vocab = 32,
                             .kv_blocks = 4,
                             .block_tokens = 4,
                             .position_max = 16,
                             .state_slots = 5};

void AddSequence(proto::StepPlan& plan, int start_position, int source, int target) {
  proto::SequenceStep* s = plan.add_sequences();
  plan.set_mode(proto::STEP_MODE_HYBRID);
  s->set_sequence_id(plan.sequences_size());
  s->set_start_position(start_position);
  s->add_token_ids(1);
  for (int i = 0; i <= start_position / kLimits.block_tokens; ++i) s->add_block_table(i);
  s->set_state_source(source);
  s->set_state_target(target);
}

absl::Status Check(int start_position, int source, int target, int state_slots) {
  proto::StepPlan plan;
  AddSequence(plan, start_position, source, target);
  StepLimits limits = kLimits;
  limits.state_slots = state_slots;
  return CheckStepPlan(plan, limits);
}

TEST(StepInputTest, AModelWithStateNeedsItsSlots) {
  EXPECT_TRUE(Check(0, 0, 1, 5).ok());
  EXPECT_TRUE(Check(3, 2, 5, 5).ok());
  for (int target : {0, -1, 6})
    EXPECT_THAT(Message(Check(0, 0, target, 5)), ::testing::HasSubstr("state_target"));
  for (int source : {0, -1, 6})
    EXPECT_THAT(Message(Check(3, source, 1, 5)), ::testing::HasSubstr("state_source"));
  EXPECT_THAT(
      Message(Check(0, 2, 1, 5)),
      ::testing::HasSubstr("sequence 1: state_source is 2, expected a slot of the pool, 0"));
}

TEST(StepInputTest, AModelWithoutStateHasNoSlots) {
  EXPECT_TRUE(Check(0, 0, 0, 0).ok());
  EXPECT_TRUE(Check(3, 0, 0, 0).ok());
  EXPECT_FALSE(Check(3, 1, 0, 0).ok());
  EXPECT_FALSE(Check(3, 0, 1, 0).ok());
}

TEST(StepInputTest, SourcesMayBeSharedTargetsMayNot) {
  for (auto [source, target, ok] :
       {std::tuple{1, 3, true}, {1, 2, false}, {2, 3, false}, {1, 1, false}, {4, 3, true}}) {
    proto::StepPlan plan;
    AddSequence(plan, 5, 1, 2);
    AddSequence(plan, 5, source, target);
    EXPECT_EQ(CheckStepPlan(plan, kLimits).ok(), ok) << source << " " << target;
  }
}

TEST(StepInputTest, SequencesCarryTheirSlots) {
  std::unique_ptr<Device> device = MakeHostDevice(0, 0);
  auto input = StepInput::Allocate(kLimits, *device);
  ASSERT_TRUE(input.ok()) << input.status();
  proto::StepPlan plan;
  AddSequence(plan, 0, 0, 4);
  AddSequence(plan, 6, 1, 3);
  ASSERT_TRUE(input->Fill(plan, *device).ok());
  ASSERT_EQ(input->sequences().size(), 2u);
  EXPECT_EQ(input->sequences()[0].state_source, 0);
  EXPECT_EQ(input->sequences()[0].state_target, 4);
  EXPECT_EQ(input->sequences()[1].state_source, 1);
  EXPECT_EQ(input->sequences()[1].state_target, 3);
}

}  // namespace
}  // namespace kt
