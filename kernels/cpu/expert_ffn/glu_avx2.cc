// SPDX-License-Identifier: Apache-2.0
// AVX2 + FMA, also used by the AVX-512 rows: the activation is a few percent of their time at most.
#include <immintrin.h>
#include <stdint.h>

#include "kernels/cpu/expert_ffn/glu.h"

namespace kt::avx2 {
namespace {

// 2^n for integral n in [-126, 127].
__m256 PowerOfTwo(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

// x = n ln 2 + r with |r| <= ln 2 / 2; exp(r) by its Taylor series to r^7 (remainder below 5e-9);
// the power of two in two factors, so that overflow gives infinity and underflow zero. NaN stays
// NaN: min and max return their second operand then.
__m256 Exp(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(-104.0f), _mm256_min_ps(_mm256_set1_ps(89.0f), x));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e4p-1f),
                              x);  // ln 2, upper bits: n times it is exact
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.7f7d1cp-20f), r);  // ln 2, the rest
  __m256 p = _mm256_set1_ps(1.0f / 5040);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 2));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(exponent, 1);
  return _mm256_mul_ps(_mm256_mul_ps(p, PowerOfTwo(half)),
                       PowerOfTwo(_mm256_sub_epi32(exponent, half)));
}

struct Params {
  __m256 minus_alpha, limit, minus_limit, up_offset;
  explicit Params(const GluParams& p)
      : minus_alpha(_mm256_set1_ps(-p.alpha)),
        limit(_mm256_set1_ps(p.limit)),
        minus_limit(_mm256_set1_ps(-p.limit)),
        up_offset(_mm256_set1_ps(p.up_offset)) {}
};

// NaN stays, as in Exp.
__m256 Glu(const Params& p, const float* gate, const float* up) {
  const __m256 g = _mm256_min_ps(p.limit, _mm256_loadu_ps(gate));
  const __m256 u = _mm256_max_ps(p.minus_limit, _mm256_min_ps(p.limit, _mm256_loadu_ps(up)));
  const __m256 e = Exp(_mm256_mul_ps(p.minus_alpha, g));
  return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), e)),
                       _mm256_add_ps(u, p.up_offset));
}

void Store(float* out, __m256 x) { _mm256_storeu_ps(out, x); }

void Store(uint16_t* out, __m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i lowest = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(bits, _mm256_add_epi32(lowest, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(packed));
}

template <typename Out>
void Run(const GluParams& params, const float* gate, const float* up, int n, Out* out) {
  constexpr int kLanes = 8;
  const Params p(params);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, Glu(p, gate + i, up + i));
  if (i == n) return;
  float last_gate[kLanes] = {}, last_up[kLanes] = {};
  Out last_out[kLanes];
  for (int j = 0; j < n - i; ++j) {
    last_gate[j] = gate[i + j];
    last_up[j] = up[i + j];
  }
  Store(last_out, Glu(p, last_gate, last_up));
  for (int j = 0; j < n - i; ++j) out[i + j] = last_out[j];
}

}  // namespace

void GluBf16(const GluParams& params, const float* gate, const float* up, int n,
             bf16* out) noexcept {
  Run(params, gate, up, n, reinterpret_cast<uint16_t*>(out));
}
void GluF32(const GluParams& params, const float* gate, const float* up, int n,
            float* out) noexcept {
  Run(params, gate, up, n, out);
}

}  // namespace kt::avx2
