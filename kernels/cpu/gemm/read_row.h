// SPDX-License-Identifier: Apache-2.0
#ifndef KT_KERNELS_CPU_GEMM_READ_ROW_H_
#define KT_KERNELS_CPU_GEMM_READ_ROW_H_

#include "common/base/weight_matrix.h"

namespace kt {

// view.At(row, c) for all c, bit for bit but for the payload of a NaN: to out [view.k]. Fast where
// the row is contiguous, for BF16, FP8, INT8 and 4 bits.
void ReadRow(const MatrixView& view, int row, float* out) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_READ_ROW_H_
