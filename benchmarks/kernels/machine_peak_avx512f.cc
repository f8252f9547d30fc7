// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "benchmarks/kernels/machine_peak.h"

namespace kt::avx512f {

double MultiplyAdds(long rounds, float* sum) {
  constexpr int kChains = 16;
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

}  // namespace kt::avx512f
