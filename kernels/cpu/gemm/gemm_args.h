// SPDX-License-Identifier: Apache-2.0
// Plain structs and function types that the instruction-set files share with everyone: no inline
// code, no other includes.
#ifndef KT_KERNELS_CPU_GEMM_GEMM_ARGS_H_
#define KT_KERNELS_CPU_GEMM_GEMM_ARGS_H_

#include <cstdint>

#include "kernels/cpu/gemm/packed_code.h"

namespace kt {

enum class PackedScale : uint8_t { kOne, kF32, kBf16, kE8m0 };

// y (+)= x Wᵀ with packed W [n, k] of one code. y may not overlap x or w.
struct ProductArgs {
  const void* x;     // [tokens, k], bf16 or fp32
  bool x_is_bf16;    //
  int64_t x_stride;  // elements from row to row
  int tokens;        // >= 0
  const uint8_t* w;  // codes of the first tile
  int64_t tile_bytes;
  int n;                  // >= 1
  int k;                  // >= 1
  const uint8_t* scales;  // of the first tile, [groups][lanes]; not used by kOne and kBf16 codes
  PackedScale scale;
  int lanes;         // 1 or 16
  int group;         // columns; >= k: all
  int origin;        // columns of the first group that lie before column 0
  float* y;          // [tokens, n]
  int64_t y_stride;  // elements from row to row, >= n
  bool add;          // kBf16 only: the sums begin where y stands, else at zero
};

// Computes columns [16 * tile_begin, min(n, 16 * tile_end)) of y, and writes no other. Thread-safe
// on disjoint tile ranges. Every output has one order of additions, which follows from k and the
// format, so its bits depend on its x row and w row only: not on tokens, on its position among
// them, on the tile range or on blocking.
//   kBf16   one fp32 accumulator takes k in ascending order.
//   others  the accumulator starts at zero for each block of columns: a scale group, or
//           kScaledColumns columns of one that is longer, counted from its first column in this
//           matrix; then y = scale * sum + y, rounded once (by the scalar row: twice).
using ProductFn = void (*)(const ProductArgs& args, int tile_begin, int tile_end) noexcept;

inline constexpr int kScaledColumns = 128;

// Writes the numbers of `units` units of a tile: the step of a row's multiplication, 64 bytes, lies
// step_bytes behind the one before. Columns that do not exist are zero.
//   avx512bf16  2 columns: [16 rows][2] bf16
//   avx2        1 column: [16 rows] fp32
using DecodeFn = void (*)(const uint8_t* codes, int units, uint8_t* out,
                          int64_t step_bytes) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_GEMM_ARGS_H_
