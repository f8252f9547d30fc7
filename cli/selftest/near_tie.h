// SPDX-License-Identifier: Apache-2.0
// How close a router's choice of experts was.
#ifndef KT_CLI_SELFTEST_NEAR_TIE_H_
#define KT_CLI_SELFTEST_NEAR_TIE_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"

namespace kt {

// How a layer chooses experts from the logits of its router.
struct RouterRule {
  MoeConfig moe;
  std::vector<float> correction_bias;  // [num_experts], or empty
};

// The MoE layers of a model directory, by layer.
absl::StatusOr<std::map<int, RouterRule>> LoadRouterRules(const std::string& model_dir);

// True where the choice could have been another one had each logit been off by `noise` at most:
// with the logits of the chosen experts lowered and those of the others raised by so much, the
// score of the worst chosen expert (the score that the choice goes by: after softmax or sigmoid,
// with the correction bias) does not exceed that of the best rejected one; or the same for the
// groups that experts are chosen from. False where the choice does not follow from the logits: that
// is a fault and no near-tie.
//
// logits [num_experts] · chosen [top_k]
bool IsNearTie(const RouterRule& rule, std::span<const float> logits,
               std::span<const int32_t> chosen, double noise);

}  // namespace kt

#endif  // KT_CLI_SELFTEST_NEAR_TIE_H_
