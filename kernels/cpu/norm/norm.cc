// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/norm/norm.h"

#include "kernels/cpu/simd/dispatch.h"

namespace kt {
KT_DEFINE_ISA_DISPATCH(RmsNorm, RmsNormArgs)
KT_DEFINE_ISA_DISPATCH(LayerNorm, LayerNormArgs)
}  // namespace kt
