// SPDX-License-Identifier: Apache-2.0
// AVX2 + FMA. A tile's 16 rows are two ymm registers. Registers (16), at 6 tokens x 1 tile: 12
// sums, 2 weights, 1 broadcast x, 1 mask.
#include <immintrin.h>

#include "kernels/cpu/gemm/gemm_blocked.h"
#include "kernels/cpu/gemm/gemm_isa.h"
#include "kernels/cpu/gemm/gemm_widened.h"

namespace kt::avx2 {
namespace {

struct Lanes {
  using F = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8, kParts = 2;
  static constexpr int kTokensMax = 6, kPanelTiles = 4;
  static constexpr int ReuseTiles(int tokens) { return tokens > 2 ? 1 : 2; }
  static constexpr int StreamTiles(int tokens) { return tokens > 2 ? 1 : tokens > 1 ? 2 : 4; }

  static F Zero() { return _mm256_setzero_ps(); }
  static F Set(float x) { return _mm256_set1_ps(x); }
  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F FromBits(I x) { return _mm256_castsi256_ps(x); }
  static F ToFloat(I x) { return _mm256_cvtepi32_ps(x); }
  static I LoadBits(const char* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static I SetBits(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static I And(I a, I b) { return _mm256_and_si256(a, b); }
  static I Xor(I a, I b) { return _mm256_xor_si256(a, b); }
  template <int n>
  static I Shl(I x) {
    return _mm256_slli_epi32(x, n);
  }
  template <int n>
  static I Shr(I x) {
    return _mm256_srli_epi32(x, n);
  }
  template <int n>
  static I Sar(I x) {
    return _mm256_srai_epi32(x, n);
  }
  static I Zeros8Low(I x) { return _mm256_unpacklo_epi8(_mm256_setzero_si256(), x); }
  static I Zeros8High(I x) { return _mm256_unpackhi_epi8(_mm256_setzero_si256(), x); }
  static I Table8(const int8_t (&table)[16]) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  }
  static I LookUp8(I table, I x) { return _mm256_shuffle_epi8(table, x); }
  static I Widen16(const uint16_t* p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static I Widen8(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  // fp32 of a biased exponent alone: 0 is 2^-127, 255 is NaN.
  static I E8m0(I e) {
    const I nan = _mm256_cmpeq_epi32(e, SetBits(255)), tiny = _mm256_cmpeq_epi32(e, SetBits(0));
    const I bits = _mm256_or_si256(Shl<23>(e), And(nan, SetBits(0x00400000)));
    return _mm256_or_si256(bits, And(tiny, SetBits(0x00400000)));
  }
};

}  // namespace

KT_DEFINE_PRODUCTS(Widened<Lanes>)
KT_DEFINE_DECODERS(Widened<Lanes>)

}  // namespace kt::avx2
