// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "kernels/cpu/machine_peak/multiply_adds.h"

namespace kt::avx512f {

namespace {
constexpr int kChains = 16;
}

double MultiplyFp32(long rounds, float* sum) noexcept {
  __m512 acc[kChains];
  for (__m512& a : acc) a = _mm512_set1_ps(1);
  const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-3f);
  for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (__m512& a : acc) a = _mm512_fmadd_ps(a, x, y);
  }
  for (__m512 a : acc) *sum += _mm512_cvtss_f32(a);
  return double(rounds) * kChains * 16 * 2;
}

// Each sum is a factor of its next products, so that these cannot be computed once and for all.
double MultiplyInt8(long rounds, float* sum) noexcept {
  __m512i acc[kChains];
  for (__m512i& a : acc) a = _mm512_setzero_si512();
  const __m512i x = _mm512_set1_epi8(1), ones = _mm512_set1_epi16(1);
  for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (__m512i& a : acc)
      a = _mm512_add_epi32(x, _mm512_madd_epi16(_mm512_maddubs_epi16(a, x), ones));
  }
  for (__m512i a : acc) *sum += static_cast<float>(_mm512_cvtsi512_si32(a));
  return double(rounds) * kChains * 64 * 2;
}

}  // namespace kt::avx512f
