// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/near_tie.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kt {
namespace {

using Ids = std::vector<int32_t>;
using Floats = std::vector<float>;

RouterRule Rule(RouterScore score, int experts, int top_k) {
  RouterRule rule;
  rule.moe.score = score;
  rule.moe.num_experts = experts;
  rule.moe.top_k = top_k;
  return rule;
}

TEST(NearTieTest, SoftmaxGoesByTheDistanceOfTheLogits) {
  const RouterRule rule = Rule(RouterScore::kSoftmax, 4, 2);
  const Floats logits = {3, 1, 1.3f, -2};
  EXPECT_FALSE(IsNearTie(rule, logits, Ids{0, 2}, 0.14));
  EXPECT_TRUE(IsNearTie(rule, logits, Ids{0, 2}, 0.16));
  EXPECT_TRUE(IsNearTie(rule, logits, Ids{2, 0}, 0.16));
  // A shift of all logits is none of their distances.
  EXPECT_FALSE(IsNearTie(rule, Floats{103, 101, 101.3f, 98}, Ids{0, 2}, 0.14));
}

TEST(NearTieTest, SigmoidGoesByTheScoreWithTheBias) {
  RouterRule rule = Rule(RouterScore::kSigmoid, 3, 1);
  const Floats logits = {0, 2, -2};  // scores 0.5, 0.881, 0.119
  EXPECT_FALSE(IsNearTie(rule, logits, Ids{1}, 0.1));
  rule.correction_bias = {0.37f, 0, 0};  // 0.87: out by 0.011, of which noise 0.1 moves up to 0.036
  EXPECT_TRUE(IsNearTie(rule, logits, Ids{1}, 0.1));
  EXPECT_FALSE(IsNearTie(rule, logits, Ids{1}, 0.02));
  rule.correction_bias = {0.5f, 0, 0};
  EXPECT_FALSE(IsNearTie(rule, logits, Ids{0}, 0.1));
}

TEST(NearTieTest, AChoiceThatDoesNotFollowFromTheLogitsIsAFault) {
  const RouterRule rule = Rule(RouterScore::kSoftmax, 4, 2);
  const Floats logits = {3, 1, 1.01f, -2};
  EXPECT_TRUE(IsNearTie(rule, logits, Ids{0, 2}, 0.1));
  EXPECT_FALSE(IsNearTie(rule, logits, Ids{0, 1}, 0.1));
  EXPECT_FALSE(IsNearTie(rule, logits, Ids{0, 3}, 0.1));
  EXPECT_FALSE(IsNearTie(rule, logits, Ids{0, 4}, 0.1));
  EXPECT_FALSE(IsNearTie(rule, logits, Ids{0, -1}, 0.1));
  const float nan = std::nanf("");
  EXPECT_FALSE(IsNearTie(rule, Floats{nan, nan, nan, nan}, Ids{0, 1}, 0.1));
}

TEST(NearTieTest, WhereAllExpertsAreChosenThereIsNone) {
  const RouterRule rule = Rule(RouterScore::kSoftmax, 2, 2);
  EXPECT_FALSE(IsNearTie(rule, Floats{1, 1}, Ids{0, 1}, 0.1));
}

// Groups {0, 1}, {2, 3}, {4, 5}, one of which is kept; then one expert of it is chosen.
TEST(NearTieTest, GroupsAreChosenFirst) {
  RouterRule rule = Rule(RouterScore::kSigmoid, 6, 1);
  rule.moe.num_groups = 3;
  rule.moe.topk_groups = 1;
  // Expert 3 is as good as the chosen one, but its group is far behind.
  EXPECT_FALSE(IsNearTie(rule, Floats{1, 0, -3, 1, -3, -3}, Ids{0}, 0.1));
  // The group {2, 3} is near: 1.23 against 1.21.
  EXPECT_TRUE(IsNearTie(rule, Floats{1, 0, -1, 3, -3, -3}, Ids{0}, 0.1));
  EXPECT_FALSE(IsNearTie(rule, Floats{1, 0, -1, 3, -3, -3}, Ids{3}, 0.1));
  // Both experts of the kept group are near each other.
  EXPECT_TRUE(IsNearTie(rule, Floats{1, 0.9f, -3, 1, -3, -3}, Ids{0}, 0.1));
}

TEST(NearTieTest, RulesComeFromTheModelDirectory) {
  auto softmax = LoadRouterRules(KT_SOURCE_DIR "/tests/data/models/qwen3_moe");
  ASSERT_TRUE(softmax.ok()) << softmax.status();
  ASSERT_FALSE(softmax->empty());
  EXPECT_EQ(softmax->begin()->second.moe.score, RouterScore::kSoftmax);
  EXPECT_TRUE(softmax->begin()->second.correction_bias.empty());
  auto sigmoid = LoadRouterRules(KT_SOURCE_DIR "/tests/data/models/glm4_moe");
  ASSERT_TRUE(sigmoid.ok()) << sigmoid.status();
  EXPECT_FALSE(sigmoid->contains(0));  // dense
  for (const auto& [layer, rule] : *sigmoid) {
    ASSERT_EQ(rule.correction_bias.size(), static_cast<size_t>(rule.moe.num_experts));
    EXPECT_NE(rule.correction_bias, Floats(rule.correction_bias.size()));
  }
  EXPECT_FALSE(LoadRouterRules("/nowhere").ok());
}

}  // namespace
}  // namespace kt
