// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rope/rope.h"

#include <cmath>

#include "kernels/cpu/simd/dispatch.h"

namespace kt {

void RopeTable(const int32_t* positions, int tokens, const float* inv_freq, int half, float scale,
               float* cos, float* sin) noexcept {
  for (int t = 0; t < tokens; ++t) {
    for (int j = 0; j < half; ++j) {
      float angle = static_cast<float>(positions[t]) * inv_freq[j];
      cos[int64_t{t} * half + j] = std::cos(angle) * scale;
      sin[int64_t{t} * half + j] = std::sin(angle) * scale;
    }
  }
}

KT_DEFINE_ISA_DISPATCH(ApplyRope, RopeArgs)

}  // namespace kt
