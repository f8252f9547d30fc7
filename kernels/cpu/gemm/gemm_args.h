// SPDX-License-Identifier: Apache-2.0
// Plain structs that the instruction-set files share with everyone: no inline code, no other
// includes.
#ifndef KT_KERNELS_CPU_GEMM_GEMM_ARGS_H_
#define KT_KERNELS_CPU_GEMM_GEMM_ARGS_H_

#include <cstdint>

namespace kt {

struct bf16;

// y = x Wᵀ. The caller owns all memory; y may not overlap x or w.
struct GemmArgs {
  const void* x;     // [tokens, k], bf16 or fp32 as the function says
  int64_t x_stride;  // elements from row to row
  int tokens;        // >= 0
  const bf16* w;     // [n, k] packed (packed_bf16.h)
  int n;             // >= 1
  int k;             // >= 1
  float* y;          // [tokens, n]
  int64_t y_stride;  // elements from row to row, >= n
};

// Computes columns [16 * tile_begin, min(n, 16 * tile_end)) of y, and writes no other. Thread-safe
// on disjoint tile ranges. Every output has one fp32 accumulator that takes k in ascending order,
// so its bits depend on its x row and w row only: not on tokens, on its position among them, on the
// tile range or on blocking.
using GemmFn = void (*)(const GemmArgs& args, int tile_begin, int tile_end) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_GEMM_ARGS_H_
