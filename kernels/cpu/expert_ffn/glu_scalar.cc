// SPDX-License-Identifier: Apache-2.0
// The definition of correct.
#include <cmath>

#include "common/base/bf16.h"
#include "kernels/cpu/expert_ffn/glu.h"

namespace kt::scalar {
namespace {

// NaN fails every comparison and stays.
float Glu(const GluParams& p, float gate, float up) {
  const float g = gate > p.limit ? p.limit : gate;
  const float u = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
  return g / (1.0f + std::exp(-p.alpha * g)) * (u + p.up_offset);
}

}  // namespace

void GluBf16(const GluParams& params, const float* gate, const float* up, int n,
             bf16* out) noexcept {
  for (int i = 0; i < n; ++i) out[i] = ToBf16(Glu(params, gate[i], up[i]));
}

void GluF32(const GluParams& params, const float* gate, const float* up, int n,
            float* out) noexcept {
  for (int i = 0; i < n; ++i) out[i] = Glu(params, gate[i], up[i]);
}

}  // namespace kt::scalar
