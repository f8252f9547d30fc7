// SPDX-License-Identifier: Apache-2.0
// The softmax of a row of scores taken tile by tile, and the weighted sum of values under it. Any
// block of rows gives each of its rows the same operations in the same order.
#ifndef KT_KERNELS_CPU_ATTENTION_RUNNING_SOFTMAX_H_
#define KT_KERNELS_CPU_ATTENTION_RUNNING_SOFTMAX_H_

#include "kernels/cpu/attention/key_tile.h"
#include "kernels/cpu/simd/vec.h"

namespace kt::KT_ISA_NAMESPACE {
namespace {

// Register plan: rows x vectors of accumulators, beside the loaded keys or values and one
// broadcast. 32, 16 and 16 registers.
constexpr int kValueVecs = kLanes == 8 ? 2 : 4;

// Turns the scores p [kKeyTile] of keys [begin, end) into weights relative to the new running
// maximum, 0 elsewhere, and adds them to the running sum `total` [kSumLanes]. Returns the factor
// of what was summed under the old maximum.
inline float SoftmaxTile(float* p, float scale, int begin, int end, float* running_max,
                         float* total) {
  constexpr int kVecs = kKeyTile / kLanes;
  VecF score[kVecs];
  VecF max = Set(*running_max);
  VecI key;
  for (int i = 0; i < kLanes; ++i) key[i] = i;
#pragma GCC unroll 16
  for (int c = 0; c < kVecs; ++c) {
    const VecI at = key + c * kLanes;
    score[c] = Load(p + c * kLanes) * scale;
    score[c] = (at >= begin) & (at < end) ? score[c] : Set(-__builtin_inff());
    max = Max(max, score[c]);
  }
  const float new_max = ReduceMax(max);
  VecF sum = {};
#pragma GCC unroll 16
  for (int c = 0; c < kVecs; ++c) {
    const VecF weight = Exp(score[c] - new_max);
    Store(p + c * kLanes, weight);
    sum += weight;
  }
  const VecF factor = Exp(Set(*running_max - new_max));
  Store(total, Fma(Load(total), factor, sum));
  *running_max = new_max;
  return factor[0];
}

// sums [kRows, padded], columns [d, d + kVecs * kLanes): factor * sums + p v over keys [begin, end)
// ascending. p [kRows, kKeyTile]; value(key) points at the key's values.
template <int kRows, int kVecs, typename Value>
inline void AddValueColumns(float* sums, int64_t padded, const float* factor, const float* p,
                            int begin, int end, int d, Value value) {
  VecF sum[kRows][kVecs];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c)
      sum[r][c] = Load(sums + r * padded + d + c * kLanes) * factor[r];
  }
  for (int key = begin; key < end; ++key) {
    const auto* values = value(key) + d;
    VecF v[kVecs];
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) v[c] = Load(values + c * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      VecF weight = Set(p[r * kKeyTile + key]);
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) sum[r][c] = Fma(weight, v[c], sum[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) Store(sums + r * padded + d + c * kLanes, sum[r][c]);
  }
}

// The same for all columns; padded is a multiple of 16.
template <int kRows, typename Value>
inline void AddValues(float* sums, int64_t padded, const float* factor, const float* p, int begin,
                      int end, Value value) {
  int d = 0;
  for (; d + kValueVecs * kLanes <= padded; d += kValueVecs * kLanes)
    AddValueColumns<kRows, kValueVecs>(sums, padded, factor, p, begin, end, d, value);
  for (; d < padded; d += kLanes)
    AddValueColumns<kRows, 1>(sums, padded, factor, p, begin, end, d, value);
}

}  // namespace
}  // namespace kt::KT_ISA_NAMESPACE

#endif  // KT_KERNELS_CPU_ATTENTION_RUNNING_SOFTMAX_H_
