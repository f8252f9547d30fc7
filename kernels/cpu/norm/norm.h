// SPDX-License-Identifier: Apache-2.0
#ifndef KT_KERNELS_CPU_NORM_NORM_H_
#define KT_KERNELS_CPU_NORM_NORM_H_

#include <cstdint>

#include "kernels/cpu/features/cpu_features.h"

namespace kt {

// y = x / sqrt(mean(x^2) + eps) * weight over vectors of n, in fp32, rounded once.
//
// Shapes   x, y [rows, groups, n] float or bf16 · weight [n], shared by all groups (groups > 1:
//          per-head norm of queries or keys)
// Units    strides in elements between rows; the groups of a row are adjacent
// Owns     nothing; y may be x
// Threads  reentrant; a vector's bits depend on its own values only
struct RmsNormArgs {
  const void* x = nullptr;
  int64_t x_stride = 0;
  void* y = nullptr;
  int64_t y_stride = 0;
  const float* weight = nullptr;
  int rows = 0;
  int groups = 1;
  int n = 0;
  float eps = 0;
  bool is_bf16 = false;
};
void RmsNorm(Isa isa, const RmsNormArgs& args) noexcept;

// y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias over vectors of n, in fp32,
// rounded once. x, y [rows, n] float or bf16 · weight, bias [n]; the rest as RmsNorm.
struct LayerNormArgs {
  const void* x = nullptr;
  int64_t x_stride = 0;
  void* y = nullptr;
  int64_t y_stride = 0;
  const float* weight = nullptr;
  const float* bias = nullptr;
  int rows = 0;
  int n = 0;
  float eps = 0;
  bool is_bf16 = false;
};
void LayerNorm(Isa isa, const LayerNormArgs& args) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_NORM_NORM_H_
