// SPDX-License-Identifier: Apache-2.0
// What is done to rows before and after oneDNN multiplies them, compiled once per instruction set:
// plain structs, no inline code.
#ifndef KT_KERNELS_CPU_ONEDNN_PANEL_ROWS_H_
#define KT_KERNELS_CPU_ONEDNN_PANEL_ROWS_H_

#include "common/base/bf16.h"

namespace kt {

// out [rows, columns_out] = x [rows, columns] as fp32, zeros behind it.
struct WidenRowsArgs {
  const bf16* x;
  int64_t x_stride;  // elements from row to row
  int rows, columns, columns_out;
  float* out;
};

// y [rows, n] = scales * sums + (add ? y : 0), rounded once where the row has a fused multiply-add.
struct FoldSumsArgs {
  const float* sums;    // [rows, sums_stride]
  int64_t sums_stride;  // elements from row to row
  const float* scales;  // [n]
  int rows, n;
  bool add;
  float* y;
  int64_t y_stride;  // elements from row to row
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_ONEDNN_PANEL_ROWS_H_
