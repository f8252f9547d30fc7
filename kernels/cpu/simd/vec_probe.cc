// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd/vec_probe.h"

#include "kernels/cpu/simd/dispatch.h"

namespace kt {
KT_DEFINE_ISA_DISPATCH(VecProbe, VecProbeArgs)
}  // namespace kt
