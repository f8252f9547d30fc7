// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/kernels/machine_peak.h"

#include <emmintrin.h>

namespace kt {

namespace scalar {

double MultiplyAdds(long rounds, float* sum) {
  constexpr int kChains = 10;
  __m128 acc[kChains];
  for (__m128& a : acc) a = _mm_set1_ps(1);
  const __m128 x = _mm_set1_ps(0.999f), y = _mm_set1_ps(1e-3f);
  for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (__m128& a : acc) a = _mm_add_ps(_mm_mul_ps(a, x), y);
  }
  for (__m128 a : acc) *sum += _mm_cvtss_f32(a);
  return double(rounds) * kChains * 4 * 2;
}

}  // namespace scalar

void ReadMemory(const char* data, long bytes, float* sum) {
  constexpr int kChains = 8;
  __m128i acc[kChains] = {};
  for (long i = 0; i + kChains * 16 <= bytes; i += kChains * 16) {
    _mm_prefetch(data + i + 2048, _MM_HINT_T0);
    _mm_prefetch(data + i + 2048 + 64, _MM_HINT_T0);
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) {
      acc[c] = _mm_xor_si128(acc[c], _mm_load_si128(reinterpret_cast<const __m128i*>(data + i) + c));
    }
  }
  for (__m128i a : acc) *sum += static_cast<float>(_mm_cvtsi128_si32(a));
}

}  // namespace kt
