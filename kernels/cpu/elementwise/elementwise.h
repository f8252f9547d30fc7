// SPDX-License-Identifier: Apache-2.0
// Elementwise steps between the matrix products. Arithmetic in fp32, one rounding to the activation
// type per stored element; an element depends on the elements at its place only, so any split of
// rows or ranges gives the same bits. Strides in elements.
#ifndef KT_KERNELS_CPU_ELEMENTWISE_ELEMENTWISE_H_
#define KT_KERNELS_CPU_ELEMENTWISE_ELEMENTWISE_H_

#include <cstdint>
#include <limits>

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

// The activation of gated feed-forward layers, with g' = min(gate, limit), u' = clamp(up, -limit,
// limit):
//   out = g' sigmoid(alpha g') (u' + up_offset)
// The defaults are silu(gate) up; SwiGLU as gpt-oss has it is {1.702, 7, 1}.
struct GluParams {
  float alpha = 1;
  float limit = std::numeric_limits<float>::infinity();
  float up_offset = 0;
};

// gate, up [rows, n] fp32 · out [rows, n] of the activation type.
struct GluArgs {
  GluParams params;
  const float* gate = nullptr;
  const float* up = nullptr;
  int64_t stride = 0;  // of gate and up
  void* out = nullptr;
  int64_t out_stride = 0;
  int rows = 0;
  int n = 0;
  bool is_bf16 = false;
};
void Glu(Isa isa, const GluArgs& args) noexcept;

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

// x *= sigmoid(gate) in place, both [rows, n] of the activation type; strides in elements between
// rows.
struct SigmoidMulArgs {
  void* x = nullptr;
  int64_t x_stride = 0;
  const void* gate = nullptr;
  int64_t gate_stride = 0;
  int rows = 0;
  int n = 0;
  bool is_bf16 = false;
};
void SigmoidMul(Isa isa, const SigmoidMulArgs& args) noexcept;

// y[row] *= sigmoid(gate[row]) in place. y [rows, n] fp32 · gate [rows] fp32.
struct ScaleRowsArgs {
  float* y = nullptr;
  int64_t stride = 0;
  const float* gate = nullptr;
  int rows = 0;
  int n = 0;
};
void ScaleRows(Isa isa, const ScaleRowsArgs& args) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_ELEMENTWISE_ELEMENTWISE_H_
