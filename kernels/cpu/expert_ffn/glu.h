// SPDX-License-Identifier: Apache-2.0
// The activation of a gated expert. Plain declarations only: the instruction-set files include
// this.
#ifndef KT_KERNELS_CPU_EXPERT_FFN_GLU_H_
#define KT_KERNELS_CPU_EXPERT_FFN_GLU_H_

namespace kt {

struct bf16;

// With L = limit, g' = min(gate, L) and u' = clamp(up, -L, L):
//   out = g' * sigmoid(alpha * g') * (u' + up_offset)
// The defaults are silu(gate) * up. SwiGLU as gpt-oss has it: {1.702, 7, 1}.
struct GluParams {
  float alpha = 1;
  float limit = __builtin_inff();
  float up_offset = 0;
};

// fp32 throughout, a few units in the last place from the exact value; bf16 results are rounded to
// nearest even at the end. out may be gate or up itself. An element's bits do not depend on its
// position.
struct GluKernels {
  void (*to_bf16)(const GluParams& params, const float* gate, const float* up, int n,
                  bf16* out) noexcept;
  void (*to_f32)(const GluParams& params, const float* gate, const float* up, int n,
                 float* out) noexcept;
};

namespace scalar {
void GluBf16(const GluParams& params, const float* gate, const float* up, int n,
             bf16* out) noexcept;
void GluF32(const GluParams& params, const float* gate, const float* up, int n,
            float* out) noexcept;
}  // namespace scalar

namespace avx2 {
void GluBf16(const GluParams& params, const float* gate, const float* up, int n,
             bf16* out) noexcept;
void GluF32(const GluParams& params, const float* gate, const float* up, int n,
            float* out) noexcept;
}  // namespace avx2

}  // namespace kt

#endif  // KT_KERNELS_CPU_EXPERT_FFN_GLU_H_
