// SPDX-License-Identifier: Apache-2.0
// The activation of a gated expert: out[i] = silu(gate[i]) * up[i], silu(g) = g / (1 + exp(-g)).
// Plain declarations only: the instruction-set files include this.
#ifndef KT_KERNELS_CPU_EXPERT_FFN_SILU_GLU_H_
#define KT_KERNELS_CPU_EXPERT_FFN_SILU_GLU_H_

namespace kt {

struct bf16;

// fp32 throughout, a few units in the last place from the exact value; bf16 results are rounded to
// nearest even at the end. out may be gate or up itself. An element's bits do not depend on its
// position.
struct SiluGluKernels {
  void (*to_bf16)(const float* gate, const float* up, int n, bf16* out) noexcept;
  void (*to_f32)(const float* gate, const float* up, int n, float* out) noexcept;
};

namespace scalar {
void SiluGluBf16(const float* gate, const float* up, int n, bf16* out) noexcept;
void SiluGluF32(const float* gate, const float* up, int n, float* out) noexcept;
}  // namespace scalar

namespace avx2 {
void SiluGluBf16(const float* gate, const float* up, int n, bf16* out) noexcept;
void SiluGluF32(const float* gate, const float* up, int n, float* out) noexcept;
}  // namespace avx2

}  // namespace kt

#endif  // KT_KERNELS_CPU_EXPERT_FFN_SILU_GLU_H_
