// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "benchmarks/kernels/machine_peak.h"

namespace kt::avx512bf16 {

double MultiplyAdds(long rounds, float* sum) {
  constexpr int kChains = 16;
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

}  // namespace kt::avx512bf16
