// SPDX-License-Identifier: Apache-2.0
// Routing of tokens to experts: the router's linear layer and the choice of experts from its
// logits.
#ifndef KT_KERNELS_CPU_ROUTER_ROUTER_H_
#define KT_KERNELS_CPU_ROUTER_ROUTER_H_

#include <cstdint>

#include "kernels/cpu/features/cpu_features.h"

namespace kt {

// logits = x W^T, everything in fp32.
//
// Shapes   x [tokens, hidden] float or bf16 · weight [experts, hidden] float or bf16 · logits
// [tokens, experts] Units    strides in elements; to split the work by experts, pass a part of the
// weight's rows and move logits along Order    each logit is summed over hidden in an order that
// depends on hidden alone
struct RouterLogitsArgs {
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* weight = nullptr;
  float* logits = nullptr;
  int64_t logits_stride = 0;
  int tokens = 0;
  int experts = 0;
  int hidden = 0;
  bool x_is_bf16 = false;
  bool weight_is_bf16 = false;
};
void RouterLogits(Isa isa, const RouterLogitsArgs& args) noexcept;

// Chooses top_k experts for each token:
//   s = softmax(logits) or sigmoid(logits); c = s + correction_bias (where given)
//   groups > 1: groups of experts / groups consecutive experts score the sum of their two best c;
//   all but the topk_groups best are out ids = the top_k best c; weights = s[ids], divided by
//   (their sum + 1e-20) if normalize, times scaling_factor
//
// Shapes   logits [tokens, experts] with a stride · correction_bias [experts] or null · ids,
// weights [tokens, top_k] Limits   top_k <= experts <= kRouterExpertsMax; groups divides experts
// Order    ids by descending weight; every tie goes to the lower id (or group). The same on every
// instruction set. Errors   none: a NaN counts as the lowest score, ids are always distinct and in
// range, the weights then tell (NaN)
constexpr int kRouterExpertsMax = 1024;
struct RouterTopkArgs {
  const float* logits = nullptr;
  int64_t logits_stride = 0;
  const float* correction_bias = nullptr;
  int32_t* ids = nullptr;
  float* weights = nullptr;
  int tokens = 0;
  int experts = 0;
  int top_k = 0;
  int groups = 1;
  int topk_groups = 1;
  bool sigmoid = false;
  bool normalize = true;
  float scaling_factor = 1;
};
void RouterTopk(const RouterTopkArgs& args) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_ROUTER_ROUTER_H_
