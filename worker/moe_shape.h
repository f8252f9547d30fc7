// SPDX-License-Identifier: Apache-2.0
#ifndef KT_WORKER_MOE_SHAPE_H_
#define KT_WORKER_MOE_SHAPE_H_

#include "common/model/model_config.h"
#include "kernels/cpu/expert_ffn/moe_ffn.h"

namespace kt {

// What the kernels take of a model's MoE layer, for experts of which `intermediate` rows are held.
inline MoeShape MoeShapeOf(const MoeConfig& moe, int intermediate) {
  return {.hidden = moe.width,
          .intermediate = intermediate,
          .num_experts = moe.num_experts,
          .top_k = moe.top_k,
          .glu = {.alpha = moe.activation_alpha,
                  .limit = moe.activation_limit,
                  .up_offset = moe.activation == Activation::kSwigluOai ? 1.0f : 0.0f}};
}

}  // namespace kt

#endif  // KT_WORKER_MOE_SHAPE_H_
