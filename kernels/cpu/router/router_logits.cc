// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/router/router.h"
#include "kernels/cpu/simd/dispatch.h"

namespace kt {
KT_DEFINE_ISA_DISPATCH(RouterLogits, RouterLogitsArgs)
}  // namespace kt
