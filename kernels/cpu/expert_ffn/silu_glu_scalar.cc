// SPDX-License-Identifier: Apache-2.0
// The definition of correct.
#include <cmath>

#include "common/base/bf16.h"
#include "kernels/cpu/expert_ffn/silu_glu.h"

namespace kt::scalar {
namespace {

float SiluGlu(float gate, float up) { return gate / (1.0f + std::exp(-gate)) * up; }

}  // namespace

void SiluGluBf16(const float* gate, const float* up, int n, bf16* out) noexcept {
  for (int i = 0; i < n; ++i) out[i] = ToBf16(SiluGlu(gate[i], up[i]));
}

void SiluGluF32(const float* gate, const float* up, int n, float* out) noexcept {
  for (int i = 0; i < n; ++i) out[i] = SiluGlu(gate[i], up[i]);
}

}  // namespace kt::scalar
