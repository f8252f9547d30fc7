// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/quantize_row.h"

#include <emmintrin.h>  // SSE2: part of every x86-64

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace kt {
namespace {

constexpr int kChunk = 16;

// 16 numbers as four registers of four.
struct Chunk {
  __m128 quarter[4];
};

Chunk Load(const float* x) {
  return {_mm_loadu_ps(x), _mm_loadu_ps(x + 4), _mm_loadu_ps(x + 8), _mm_loadu_ps(x + 12)};
}

Chunk Load(const bf16* x) {
  Chunk c;
  for (int i = 0; i < 2; ++i) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + 8 * i));
    c.quarter[2 * i] = _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), bits));
    c.quarter[2 * i + 1] = _mm_castsi128_ps(_mm_unpackhi_epi16(_mm_setzero_si128(), bits));
  }
  return c;
}

// f(i, chunk, count) for chunks of 16 numbers; the last may have less and is filled up with zeros.
template <typename T, typename F>
void ForChunks(const T* x, int k, F f) {
  int i = 0;
  for (; i + kChunk <= k; i += kChunk) f(i, Load(x + i), kChunk);
  if (i == k) return;
  T rest[kChunk] = {};
  std::memcpy(rest, x + i, (k - i) * sizeof(T));
  f(i, Load(rest), k - i);
}

// As bits, magnitudes are ordered like integers, NaN above infinity above all numbers.
template <typename T>
float LargestMagnitude(const T* x, int k) {
  __m128i largest = _mm_setzero_si128();
  ForChunks(x, k, [&](int, const Chunk& c, int) {
    for (const __m128& quarter : c.quarter) {
      const __m128i bits = _mm_and_si128(_mm_castps_si128(quarter), _mm_set1_epi32(0x7fffffff));
      const __m128i larger = _mm_cmpgt_epi32(bits, largest);
      largest = _mm_or_si128(_mm_and_si128(larger, bits), _mm_andnot_si128(larger, largest));
    }
  });
  int32_t lanes[4], bits = 0;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes), largest);
  for (int32_t lane : lanes) bits = lane > bits ? lane : bits;
  return std::bit_cast<float>(bits);
}

template <typename T>
float Quantize(const T* x, int k, int levels, int8_t* codes) {
  const float scale = LargestMagnitude(x, k) / static_cast<float>(levels);
  const float reciprocal = 1 / scale;
  if (!std::isfinite(reciprocal) || !std::isfinite(scale)) {
    std::memset(codes, 0, k);
    return std::isfinite(scale) ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  const __m128 factor = _mm_set1_ps(reciprocal);
  ForChunks(x, k, [&](int i, const Chunk& c, int count) {
    __m128i rounded[4];
    for (int j = 0; j < 4; ++j) rounded[j] = _mm_cvtps_epi32(_mm_mul_ps(c.quarter[j], factor));
    const __m128i all = _mm_packs_epi16(_mm_packs_epi32(rounded[0], rounded[1]),
                                        _mm_packs_epi32(rounded[2], rounded[3]));
    if (count == kChunk) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), all);
    } else {
      int8_t rest[kChunk];
      _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), all);
      std::memcpy(codes + i, rest, count);
    }
  });
  return scale;
}

}  // namespace

float QuantizeRow(const float* x, int k, int levels, int8_t* codes) noexcept {
  return Quantize(x, k, levels, codes);
}
float QuantizeRow(const bf16* x, int k, int levels, int8_t* codes) noexcept {
  return Quantize(x, k, levels, codes);
}

}  // namespace kt
