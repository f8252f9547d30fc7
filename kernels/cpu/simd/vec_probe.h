// SPDX-License-Identifier: Apache-2.0
// For vec_test: the functions of vec.h over arrays, per row of the table.
#ifndef KT_KERNELS_CPU_SIMD_VEC_PROBE_H_
#define KT_KERNELS_CPU_SIMD_VEC_PROBE_H_

#include <cstdint>

#include "common/base/bf16.h"
#include "kernels/cpu/features/cpu_features.h"

namespace kt {

// exp[i] = e^x[i]; rounded[i] = x[i] as bf16; widened[i] = rounded[i] read back. Then, of all n
// values, sum and max vector by vector.
struct VecProbeArgs {
  const float* x;
  int64_t n;
  float* exp;
  bf16* rounded;
  float* widened;
  float* sum;
  float* max;
};
void VecProbe(Isa isa, const VecProbeArgs& args) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_SIMD_VEC_PROBE_H_
