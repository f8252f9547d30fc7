// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/onednn/panel_rows.h"
#include "kernels/cpu/simd/vec.h"

namespace kt::KT_ISA_NAMESPACE {

void WidenRows(const WidenRowsArgs& a) noexcept {
  for (int row = 0; row < a.rows; ++row) {
    const bf16* x = a.x + row * a.x_stride;
    float* out = a.out + int64_t{row} * a.columns_out;
    ForEachVector(a.columns,
                  [&](int64_t i, auto load, auto store) { store(out + i, load(x + i)); });
    for (int i = a.columns; i < a.columns_out; ++i) out[i] = 0;
  }
}

void FoldSums(const FoldSumsArgs& a) noexcept {
  for (int row = 0; row < a.rows; ++row) {
    const float* sums = a.sums + row * a.sums_stride;
    float* y = a.y + row * a.y_stride;
    ForEachVector(a.n, [&](int64_t i, auto load, auto store) {
      store(y + i, Fma(load(a.scales + i), load(sums + i), a.add ? load(y + i) : VecF{}));
    });
  }
}

}  // namespace kt::KT_ISA_NAMESPACE
