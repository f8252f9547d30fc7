// SPDX-License-Identifier: Apache-2.0
// Products of activations rounded to int8 with weights of int8 or int4 and one scale per row: the
// kt-methods AMXINT8 and AMXINT4. Sums are exact integers, so results have the same bits on every
// instruction set. Allocates nothing, starts no threads.
#ifndef KT_KERNELS_CPU_INT8_GEMM_INT8_GEMM_H_
#define KT_KERNELS_CPU_INT8_GEMM_INT8_GEMM_H_

#include <cstdint>

#include "kernels/cpu/features/cpu_features.h"
#include "kernels/cpu/gemm/packed_matrix.h"
#include "kernels/cpu/int8_gemm/int8_gemm_args.h"

namespace kt {

// Rows of activations as codes. The caller owns the memory.
struct Int8Rows {
  int8_t* codes;  // [rows] of k columns, zero behind them; the order is that of weights of one code
  int64_t stride;  // bytes from row to row, >= Int8RowBytes(k)
  float* scales;   // [rows]
  int32_t* sums;   // [rows], of the codes

  Int8Rows From(int row) const { return {codes + row * stride, stride, scales + row, sums + row}; }
};

// k rounded up to 64.
int64_t Int8RowBytes(int k);

// Rounds rows of x [rows, k] (bf16 or fp32, x_stride elements from row to row) by the rule of
// QuantizeRow with 127 levels, for products with weights of `code`, kInt8 or kInt4. Thread-safe on
// different rows.
void QuantizeRows(PackedCode code, bool x_is_bf16, const void* x, int64_t x_stride, int rows, int k,
                  const Int8Rows& out) noexcept;

struct Int8GemmKernels {
  Isa isa;
  Int8MultiplyFn multiply_int8;  // weights of PackedCode::kInt8
  Int8MultiplyFn multiply_int4;  // and kInt4
};

// The row of `isa`, which must be supported by this CPU.
const Int8GemmKernels& SelectInt8Gemm(Isa isa);

// y = x Wᵀ; w.bias is not added. y may not overlap x or w.
struct Int8GemmArgs {
  Int8Rows x;        // for w.k and w.format.code
  int tokens;        // >= 0
  PackedMatrix w;    // n >= 1, 1 <= k <= kInt8XColumnsMax, format.int8_x
  float* y;          // [tokens, w.n]
  int64_t y_stride;  // elements from row to row, >= w.n
};

// Computes columns [16 * tile_begin, min(n, 16 * tile_end)) of y, and writes no other:
// y = (x scale * w scale) * float(sum of code products). Thread-safe on disjoint tile ranges.
void Int8Gemm(const Int8GemmKernels& kernels, const Int8GemmArgs& args, int tile_begin,
              int tile_end) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_INT8_GEMM_INT8_GEMM_H_
