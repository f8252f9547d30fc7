// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention/find_rows.h"
#include "kernels/cpu/attention/row_dots.h"
#include "kernels/cpu/indexer/indexer_rows.h"

namespace kt::KT_ISA_NAMESPACE {
namespace {

// scores[0 .. kKeyTile) += sum of w[h] relu(queries[h] . row) over kHeads heads, ascending.
template <int kHeads, typename T>
void AddHeads(const float* queries, const float* w, const T* const* rows, int count, int n,
              float* scores) {
  float dots[kHeads * kKeyTile] = {};
  RowDots<kHeads>(queries, rows, count, n, dots);
  for (int i = 0; i < count; i += kLanes) {
    VecF score = Load(scores + i);
    for (int h = 0; h < kHeads; ++h) {
      const VecF dot = Load(dots + h * kKeyTile + i);
      score = Fma(Set(w[h]), dot < VecF{} ? VecF{} : dot, score);  // NaN stays NaN
    }
    Store(scores + i, score);
  }
}

template <typename T>
void Scores(const IndexerScoreArgs& args) {
  const IndexerArgs& a = *args.indexer;
  const int n = args.row_elements;
  const T* q = static_cast<const T*>(a.q) + args.token * a.q_stride;
  const float* w = a.w + args.token * a.w_stride;
  float* out = a.scores + args.token * a.scores_stride;
  for (int h = 0; h < a.heads; ++h)
    WidenRow(q + int64_t{h} * a.cache.kv_lora, a.cache.kv_lora, n, args.scratch + int64_t{h} * n);
  for (int first = args.position_begin; first < args.position_end; first += kKeyTile) {
    const int left = args.position_end - first, count = left < kKeyTile ? left : kKeyTile;
    const T* rows[kKeyTile];
    FindRows(a.cache, n, a.block_table, nullptr, first, count, rows);
    float scores[kKeyTile] = {};
    for (int h = 0; h < a.heads; h += kDotQueries) {
      const float* queries = args.scratch + int64_t{h} * n;
      switch (a.heads - h) {
        case 1:
          AddHeads<1>(queries, w + h, rows, count, n, scores);
          break;
        case 2:
          AddHeads<2>(queries, w + h, rows, count, n, scores);
          break;
        case 3:
          AddHeads<3>(queries, w + h, rows, count, n, scores);
          break;
        default:
          AddHeads<kDotQueries>(queries, w + h, rows, count, n, scores);
      }
    }
    __builtin_memcpy(out + first, scores, count * sizeof(float));
  }
}

// x[i] +- x[i ^ kDistance] inside a vector: the lower index of a pair gets the sum, the upper the
// difference.
template <int kDistance>
VecF Butterfly(VecF x) {
  VecI lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  const VecF other = SwapLanes<kDistance>(x);
  return (lane & kDistance) == 0 ? x + other : other - x;
}

// x = n^-1/2 H x in Sylvester's order, n a power of two. Pairs of growing distance, on every
// instruction set.
void Hadamard(float* x, int n) {
  ForEachVector(n, [&](int64_t i, auto load, auto store) {
    VecF v = load(x + i);
    if (n > 1) v = Butterfly<1>(v);
    if (n > 2) v = Butterfly<2>(v);
#if defined(__AVX2__)
    if (n > 4) v = Butterfly<4>(v);
#endif
#if defined(__AVX512F__)
    if (n > 8) v = Butterfly<8>(v);
#endif
    store(x + i, v);
  });
  for (int distance = kLanes; distance < n; distance *= 2) {
    for (int i = 0; i < n; i += 2 * distance) {
      for (int j = i; j < i + distance; j += kLanes) {
        const VecF a = Load(x + j), b = Load(x + j + distance);
        Store(x + j, a + b);
        Store(x + j + distance, a - b);
      }
    }
  }
  const VecF scale = Set(1.0f / __builtin_sqrtf(static_cast<float>(n)));
  ForEachVector(n, [&](int64_t i, auto load, auto store) { store(x + i, load(x + i) * scale); });
}

template <typename T>
void HadamardRow(T* x, int n) {
  alignas(64) float wide[kHadamardMax];
  ForEachVector(n, [&](int64_t i, auto load, auto store) { store(wide + i, load(x + i)); });
  Hadamard(wide, n);
  ForEachVector(n, [&](int64_t i, auto load, auto store) { store(x + i, load(wide + i)); });
}

constexpr uint32_t kExponent = 0x7f800000;

// The biased exponent of the least power of two that is at least max / 448 = max / (1.75 * 2^8),
// kept at 1 or more, so that it and its inverse are normal numbers.
int ScaleExponent(float max) {
  uint32_t bits;
  __builtin_memcpy(&bits, &max, sizeof(bits));
  const int exponent = static_cast<int>((bits + 0x1fffff) >> 23) - 8;  // + 1 above 1.75 * 2^e
  return exponent < 1 ? 1 : exponent;
}

float PowerOfTwo(int biased_exponent) {
  const uint32_t bits = static_cast<uint32_t>(biased_exponent) << 23;
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

// Nearest E4M3 number, ties to even, for |x| <= 448: three bits after the leading one, or steps of
// 2^-9 below 2^-6. Adding 1.5 * 2^20 times the leading one pushes the bits beyond these out.
VecF RoundToE4m3(VecF x) {
  constexpr uint32_t kLeast = (127 - 6) << 23;
  VecU leading = (VecU)x & kExponent;
  leading = leading > kLeast ? leading : kLeast - VecU{};
  const VecF push = (VecF)(leading + (20u << 23)) * 1.5f;
  return (x + push) - push;
}

template <typename T>
void QuantizeRow(T* x, int n) {
  VecF max = {}, poison = {};
  ForEachVector(n, [&](int64_t i, auto load, auto) {
    const VecF v = load(x + i), magnitude = (VecF)((VecU)v & 0x7fffffffu);
    max = Max(max, magnitude);
    poison = poison + v * 0.0f;  // NaN once a value is not finite
  });
  const float largest = ReduceMax(max), not_finite = ReduceAdd(poison);
  if (not_finite != not_finite || largest == 0) return;
  const int exponent = ScaleExponent(largest);
  const VecF scale = Set(PowerOfTwo(exponent)), inverse = Set(PowerOfTwo(254 - exponent));
  ForEachVector(n, [&](int64_t i, auto load, auto store) {
    store(x + i, RoundToE4m3(load(x + i) * inverse) * scale);
  });
}

template <typename T>
void QuantizeRows(const IndexerQuantizeArgs& a) {
  for (int row = 0; row < a.rows; ++row) {
    T* x = static_cast<T*>(a.x) + row * a.stride;
    if (a.hadamard) HadamardRow(x, a.n);
    QuantizeRow(x, a.n);
  }
}

}  // namespace

void IndexerScores(const IndexerScoreArgs& args) noexcept {
  args.indexer->cache.is_bf16 ? Scores<bf16>(args) : Scores<float>(args);
}

void IndexerQuantize(const IndexerQuantizeArgs& args) noexcept {
  args.is_bf16 ? QuantizeRows<bf16>(args) : QuantizeRows<float>(args);
}

}  // namespace kt::KT_ISA_NAMESPACE
