// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "kernels/cpu/machine_peak/multiply_adds.h"

namespace kt::avx512bf16 {

namespace {
constexpr int kChains = 16;
}

double MultiplyBf16(long rounds, float* sum) noexcept {
  __m512 acc[kChains];
  for (__m512& a : acc) a = _mm512_set1_ps(0);
  const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80);  // pairs of 1.0
  for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (__m512& a : acc) a = _mm512_dpbf16_ps(a, x, x);
  }
  for (__m512 a : acc) *sum += _mm512_cvtss_f32(a);
  return double(rounds) * kChains * 32 * 2;
}

double MultiplyInt8(long rounds, float* sum) noexcept {
  __m512i acc[kChains];
  for (__m512i& a : acc) a = _mm512_setzero_si512();
  const __m512i x = _mm512_set1_epi8(1);
  for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (__m512i& a : acc) a = _mm512_dpbusd_epi32(a, x, x);
  }
  for (__m512i a : acc) *sum += static_cast<float>(_mm512_cvtsi512_si32(a));
  return double(rounds) * kChains * 64 * 2;
}

}  // namespace kt::avx512bf16
