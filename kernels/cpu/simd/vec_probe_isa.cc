// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/simd/vec.h"
#include "kernels/cpu/simd/vec_probe.h"

namespace kt::KT_ISA_NAMESPACE {

void VecProbe(const VecProbeArgs& a) noexcept {
  VecF sum = {}, max = Set(-__builtin_inff());
  ForEachVector(a.n, [&](int64_t i, auto load, auto store) {
    VecF x = load(a.x + i);
    store(a.exp + i, Exp(x));
    store(a.rounded + i, x);
    store(a.widened + i, load(a.rounded + i));
    sum += x;
    max = Max(max, x);
  });
  *a.sum = ReduceAdd(sum);
  *a.max = ReduceMax(max);
}

}  // namespace kt::KT_ISA_NAMESPACE
