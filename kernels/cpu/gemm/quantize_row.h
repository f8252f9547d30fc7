// SPDX-License-Identifier: Apache-2.0
// Rounding rows of numbers to int8 with one scale per row: the rule of the kt-methods AMXINT8 and
// AMXINT4 for weights and for activations.
#ifndef KT_KERNELS_CPU_GEMM_QUANTIZE_ROW_H_
#define KT_KERNELS_CPU_GEMM_QUANTIZE_ROW_H_

#include <cstdint>

#include "common/base/bf16.h"

namespace kt {

// codes[i] = x[i] * (1 / scale) in fp32, rounded to nearest even; scale = float(amax / levels) with
// amax the largest |x|, levels <= 127. |codes| <= levels. Returns the scale.
//
// A row of zeros has codes and scale 0; so has one whose scale is too small to have a reciprocal
// (amax below about levels * 2^-128). A row with a NaN or an infinity has codes 0 and a NaN scale,
// so that its products are NaN.
float QuantizeRow(const float* x, int k, int levels, int8_t* codes) noexcept;
float QuantizeRow(const bf16* x, int k, int levels, int8_t* codes) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_QUANTIZE_ROW_H_
