// SPDX-License-Identifier: Apache-2.0
// Plain structs and function types that the instruction-set files share with everyone: no inline
// code, no other includes.
#ifndef KT_KERNELS_CPU_GEMM_GEMM_ARGS_H_
#define KT_KERNELS_CPU_GEMM_GEMM_ARGS_H_

#include <cstdint>

namespace kt {

struct bf16;

// y (+)= x Wᵀ with W [n, k] in bf16 tiles [ceil(k / 2)][16][2]. y may not overlap x or w.
struct MultiplyArgs {
  const void* x;       // [tokens, k], bf16 or fp32 as the function says
  int64_t x_stride;    // elements from row to row
  int tokens;          // >= 0
  const uint8_t* w;    // tiles
  int64_t tile_bytes;  // from tile to tile
  int n;               // >= 1
  int k;               // >= 1
  float* y;            // [tokens, n]
  int64_t y_stride;    // elements from row to row, >= n
  // null: the sums begin at zero, or where y stands if `add`. Else fp32 [ceil(n / 16)][16], k <=
  // kScaledColumns: the sums begin at zero, and y = scale * sum + (add ? y : 0), rounded once (by
  // the scalar row: twice).
  const float* scales;
  bool add;
};

inline constexpr int kScaledColumns = 128;

// Computes columns [16 * tile_begin, min(n, 16 * tile_end)) of y, and writes no other. Thread-safe
// on disjoint tile ranges. Every output has one fp32 accumulator that takes k in ascending order,
// so its bits depend on its x row and w row only: not on tokens, on its position among them, on the
// tile range or on blocking.
using MultiplyFn = void (*)(const MultiplyArgs& args, int tile_begin, int tile_end) noexcept;

// Turns the codes of `pairs` pairs of columns of a tile into bf16 [pairs][16][2], which holds all
// of them exactly. out is aligned to 64.
using DecodeFn = void (*)(const uint8_t* codes, int pairs, uint8_t* out) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_GEMM_ARGS_H_
