// SPDX-License-Identifier: Apache-2.0
// Plain structs and function types that the instruction-set files share with everyone: no inline
// code, no other includes.
#ifndef KT_KERNELS_CPU_INT8_GEMM_INT8_GEMM_ARGS_H_
#define KT_KERNELS_CPU_INT8_GEMM_INT8_GEMM_ARGS_H_

#include <cstdint>

namespace kt {

// y = x Wᵀ with x and W in codes: y[t][r] = x_scales[t] * w_scale[r] * (the exact sum of products
// of codes). W's are packed tiles of 16 rows (packed_matrix.h): units of 64 bytes, then fp32 [16]
// scales.
struct Int8MultiplyArgs {
  const int8_t* x;   // [tokens] rows of codes -127 ... 127 in W's order of columns, zero behind k
  int64_t x_stride;  // bytes from row to row
  const float* x_scales;  // [tokens]
  const int32_t* x_sums;  // [tokens], of a row's codes
  int tokens;             // >= 0
  const uint8_t* w;       // tiles
  int64_t tile_bytes;     // from tile to tile
  int units;              // of a tile
  int n;                  // >= 1
  float* y;               // [tokens, n]
  int64_t y_stride;       // elements from row to row, >= n
};

// Computes columns [16 * tile_begin, min(n, 16 * tile_end)) of y, and writes no other. Thread-safe
// on disjoint tile ranges. The same bits from every instruction set and for all ways to cut tokens
// and tiles.
using Int8MultiplyFn = void (*)(const Int8MultiplyArgs& args, int tile_begin,
                                int tile_end) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_INT8_GEMM_INT8_GEMM_ARGS_H_
