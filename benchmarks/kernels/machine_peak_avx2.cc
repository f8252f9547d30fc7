// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "benchmarks/kernels/machine_peak.h"

namespace kt::avx2 {

double MultiplyAdds(long rounds, float* sum) {
  constexpr int kChains = 12;
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

}  // namespace kt::avx2
