// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/elementwise/elementwise.h"

#include "kernels/cpu/simd/dispatch.h"

namespace kt {
KT_DEFINE_ISA_DISPATCH(AddParts, AddPartsArgs)
KT_DEFINE_ISA_DISPATCH(Glu, GluArgs)
KT_DEFINE_ISA_DISPATCH(Convert, ConvertArgs)
KT_DEFINE_ISA_DISPATCH(SigmoidMul, SigmoidMulArgs)
KT_DEFINE_ISA_DISPATCH(ScaleRows, ScaleRowsArgs)
}  // namespace kt
