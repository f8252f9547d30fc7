// SPDX-License-Identifier: Apache-2.0
#ifndef KT_KERNELS_CPU_ROPE_ROPE_H_
#define KT_KERNELS_CPU_ROPE_ROPE_H_

#include <cstdint>

#include "kernels/cpu/features/cpu_features.h"

namespace kt {

// cos[t, j] = scale * cosf(positions[t] * inv_freq[j]) and sin likewise, for j < half. The angle is
// one fp32 product, as in the reference implementations. Once per step; every layer that shares the
// table reads it. The same on every instruction set.
void RopeTable(const int32_t* positions, int tokens, const float* inv_freq, int half, float scale,
               float* cos, float* sin) noexcept;

// Turns the first rotary_dim components of every head in place: (a, b) -> (a cos - b sin, b cos + a
// sin), in fp32, rounded once. Components elsewhere in a head turn when x points at the first of
// them: heads [nope | rope] take x + nope.
//
// Shapes   x [tokens, heads, head_stride] float or bf16 · cos, sin [tokens, rotary_dim / 2]
// Pairs    half-split: (j, j + rotary_dim / 2); interleaved: (2j, 2j + 1)
// Units    token_stride, head_stride: elements from one token or head to the next
struct RopeArgs {
  void* x = nullptr;
  int64_t token_stride = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
  int tokens = 0;
  int heads = 0;
  int64_t head_stride = 0;
  int rotary_dim = 0;
  bool interleaved = false;
  bool is_bf16 = false;
};
void ApplyRope(Isa isa, const RopeArgs& args) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_ROPE_ROPE_H_
