// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "kernels/cpu/machine_peak/multiply_adds.h"

namespace kt::avx2 {

namespace {
constexpr int kChains = 12;  // sums; with the factors they fill the 16 registers
}

double MultiplyFp32(long rounds, float* sum) noexcept {
  __m256 acc[kChains];
  for (__m256& a : acc) a = _mm256_set1_ps(1);
  const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
  for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (__m256& a : acc) a = _mm256_fmadd_ps(a, x, y);
  }
  for (__m256 a : acc) *sum += _mm256_cvtss_f32(a);
  return double(rounds) * kChains * 8 * 2;
}

// Each sum is a factor of its next products, so that these cannot be computed once and for all.
double MultiplyInt8(long rounds, float* sum) noexcept {
  __m256i acc[kChains];
  for (__m256i& a : acc) a = _mm256_setzero_si256();
  const __m256i x = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
  for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (__m256i& a : acc)
      a = _mm256_add_epi32(x, _mm256_madd_epi16(_mm256_maddubs_epi16(a, x), ones));
  }
  for (__m256i a : acc) *sum += static_cast<float>(_mm256_cvtsi256_si32(a));
  return double(rounds) * kChains * 32 * 2;
}

}  // namespace kt::avx2
