// SPDX-License-Identifier: Apache-2.0
// Elementwise steps between the matrix products. Arithmetic in fp32, one rounding to the activation
// type per stored element; an element depends on the elements at its place only, so any split of
// rows or ranges gives the same bits. Strides in elements.
#ifndef KT_KERNELS_CPU_ELEMENTWISE_ELEMENTWISE_H_
#define KT_KERNELS_CPU_ELEMENTWISE_ELEMENTWISE_H_

#include <cstdint>

#include "kernels/cpu/features/cpu_features.h"

namespace kt {

// residual[i] += parts[0][i] + parts[1][i] + ... for i in [begin, end), the parts summed in fp32 in
// this order first.
struct AddPartsArgs {
  void* residual = nullptr;             // activation type
  const float* const* parts = nullptr;  // [num_parts], num_parts >= 1
  int num_parts = 0;
  int64_t begin = 0;
  int64_t end = 0;
  bool is_bf16 = false;
};
void AddParts(Isa isa, const AddPartsArgs& args) noexcept;

// out = silu(gate) * up, silu(g) = g / (1 + e^-g). gate, up [rows, n] fp32 · out [rows, n] of the
// activation type.
struct SiluMulArgs {
  const float* gate = nullptr;
  const float* up = nullptr;
  int64_t stride = 0;  // of gate and up
  void* out = nullptr;
  int64_t out_stride = 0;
  int rows = 0;
  int n = 0;
  bool is_bf16 = false;
};
void SiluMul(Isa isa, const SiluMulArgs& args) noexcept;

// out = x + bias, or x alone. x [rows, n] fp32 · bias [n] fp32 or null · out [rows, n] of the
// activation type; may be x where that is fp32.
struct ConvertArgs {
  const float* x = nullptr;
  int64_t stride = 0;
  const float* bias = nullptr;
  void* out = nullptr;
  int64_t out_stride = 0;
  int rows = 0;
  int n = 0;
  bool is_bf16 = false;
};
void Convert(Isa isa, const ConvertArgs& args) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_ELEMENTWISE_ELEMENTWISE_H_
