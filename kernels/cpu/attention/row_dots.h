// SPDX-License-Identifier: Apache-2.0
// Products of queries with rows of keys: lanes along the row, reduced over the lanes at
// the end in the fixed tree of ReduceAdd. A product's bits depend on its query and row only.
#ifndef KT_KERNELS_CPU_ATTENTION_ROW_DOTS_H_
#define KT_KERNELS_CPU_ATTENTION_ROW_DOTS_H_

#include "kernels/cpu/attention/key_tile.h"
#include "kernels/cpu/simd/vec.h"

namespace kt::KT_ISA_NAMESPACE {
namespace {

// Register plan: 4 queries x kDotKeys rows of accumulators, beside the loaded rows and one query;
// 32, 16 and 16 registers. Each loaded and widened row serves 4 queries.
constexpr int kDotQueries = 4;
constexpr int kDotKeys = kLanes == 16 ? 4 : 2;

// dots[q * kKeyTile + i] = queries[q * n ..] . rows[i][0 .. n) for q < kQueries and i < count, and
// beyond it up to a multiple of kDotKeys. n is a multiple of 16.
template <int kQueries, typename T>
void RowDots(const float* queries, const T* const* rows, int count, int n, float* dots) {
  for (int i = 0; i < count; i += kDotKeys) {
    VecF sum[kQueries][kDotKeys] = {};
    for (int d = 0; d < n; d += kLanes) {
      VecF row[kDotKeys];
#pragma GCC unroll 4
      for (int k = 0; k < kDotKeys; ++k) row[k] = Load(rows[i + k] + d);
#pragma GCC unroll 4
      for (int q = 0; q < kQueries; ++q) {
        const VecF query = Load(queries + int64_t{q} * n + d);
#pragma GCC unroll 4
        for (int k = 0; k < kDotKeys; ++k) sum[q][k] = Fma(query, row[k], sum[q][k]);
      }
    }
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
      for (int k = 0; k < kDotKeys; ++k) dots[q * kKeyTile + i + k] = ReduceAdd(sum[q][k]);
    }
  }
}

// Widens [n] elements to fp32, zeros up to `padded`.
template <typename T>
void WidenRow(const T* x, int n, int padded, float* y) {
  for (int d = 0; d < padded; d += kLanes) Store(y + d, VecF{});
  ForEachVector(n, [&](int64_t d, auto load, auto store) { store(y + d, load(x + d)); });
}

}  // namespace
}  // namespace kt::KT_ISA_NAMESPACE

#endif  // KT_KERNELS_CPU_ATTENTION_ROW_DOTS_H_
