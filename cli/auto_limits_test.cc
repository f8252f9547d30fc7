// SPDX-License-Identifier: Apache-2.0
#include "cli/auto_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kt::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AutoLimitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model_.max_position = 4096;
    model_.moes.resize(1);
    model_.moes[0].num_experts = 64;
  }
  // Everything costs its number of bytes, experts 1000.
  absl::StatusOr<std::vector<std::string>> Choose(int64_t memory) {
    return ChooseAutomatic(
        model_,
        [memory](const RunOptions& o) -> absl::StatusOr<bool> {
          EXPECT_FALSE(HasAutomatic(o));
          return o.chunked_prefill_size + o.max_running_requests + o.max_total_tokens +
                     1000 * o.num_gpu_experts <=
                 memory;
        },
        options_);
  }
  ModelConfig model_;
  RunOptions options_;
};

TEST_F(AutoLimitsTest, WhatIsGivenIsLeftAlone) {
  options_.num_gpu_experts = 7;
  options_.max_total_tokens = 5000;
  options_.chunked_prefill_size = 512;
  EXPECT_FALSE(HasAutomatic(options_));
  EXPECT_TRUE(Choose(0)->empty());
  EXPECT_EQ(options_.num_gpu_experts, 7);
}

TEST_F(AutoLimitsTest, ExpertsGetWhatIsLeft) {
  options_.chunked_prefill_size = 512;
  options_.max_running_requests = 8;
  options_.max_total_tokens = options_.num_gpu_experts = kAutomatic;
  ASSERT_TRUE(HasAutomatic(options_));
  EXPECT_THAT(*Choose(512 + 8 + 8 * 4096 + 9999),
              ElementsAre(HasSubstr("--max-total-tokens auto: 32768, more would bring nothing"),
                          HasSubstr("--kt-num-gpu-experts auto: 9, the most that fits")));
  EXPECT_EQ(options_.num_gpu_experts, 9);
}

TEST_F(AutoLimitsTest, TheCacheComesBeforeExperts) {
  options_.chunked_prefill_size = options_.max_running_requests = options_.max_total_tokens =
      options_.num_gpu_experts = kAutomatic;
  ASSERT_TRUE(Choose(10000).ok());
  EXPECT_EQ(options_.chunked_prefill_size, 2048);
  EXPECT_EQ(options_.max_running_requests, 32);
  EXPECT_EQ(options_.max_total_tokens, 7920);
  EXPECT_EQ(options_.num_gpu_experts, 0);
}

TEST_F(AutoLimitsTest, TheLeastIsLeftWhereNothingFits) {
  options_.max_total_tokens = kAutomatic;
  ASSERT_TRUE(Choose(0).ok());
  EXPECT_EQ(options_.max_total_tokens, 256);
}

}  // namespace
}  // namespace kt::cli
