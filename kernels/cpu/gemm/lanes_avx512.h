// SPDX-License-Identifier: Apache-2.0
// One zmm register as Widened (gemm_widened.h) wants it, a tile's 16 rows; included by AVX-512
// files only. File, a struct of such a file's anonymous namespace, makes every instantiation local
// to it.
//
// Masked forms stand where g++ 12 warns of an uninitialised value inside the plain ones; they
// compile to the same instructions.
#ifndef KT_KERNELS_CPU_GEMM_LANES_AVX512_H_
#define KT_KERNELS_CPU_GEMM_LANES_AVX512_H_

#include <immintrin.h>

#include <cstdint>

namespace kt {

template <typename File>
struct Lanes512 {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16, kParts = 1;
  static constexpr int kTokensMax = 6, kPanelTiles = 4;
  static constexpr int ReuseTiles(int) { return 4; }
  static constexpr int StreamTiles(int tokens) { return tokens > 2 ? 2 : 4; }

  static F Zero() { return _mm512_setzero_ps(); }
  static F Set(float x) { return _mm512_set1_ps(x); }
  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F FromBits(I x) { return _mm512_castsi512_ps(x); }
  static F ToFloat(I x) { return _mm512_maskz_cvtepi32_ps(0xffff, x); }
  static I LoadBits(const char* p) { return _mm512_loadu_si512(p); }
  static I SetBits(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static I And(I a, I b) { return _mm512_and_si512(a, b); }
  static I Xor(I a, I b) { return _mm512_xor_si512(a, b); }
  template <int n>
  static I Shl(I x) {
    return _mm512_maskz_slli_epi32(0xffff, x, n);
  }
  template <int n>
  static I Shr(I x) {
    return _mm512_maskz_srli_epi32(0xffff, x, n);
  }
  template <int n>
  static I Sar(I x) {
    return _mm512_maskz_srai_epi32(0xffff, x, n);
  }
  static I Zeros8Low(I x) { return _mm512_unpacklo_epi8(_mm512_setzero_si512(), x); }
  static I Zeros8High(I x) { return _mm512_unpackhi_epi8(_mm512_setzero_si512(), x); }
  static I Table8(const int8_t (&table)[16]) {
    return _mm512_maskz_broadcast_i32x4(0xffff,
                                        _mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  }
  static I LookUp8(I table, I x) { return _mm512_shuffle_epi8(table, x); }
  static I Widen16(const uint16_t* p) {
    return _mm512_maskz_cvtepu16_epi32(0xffff,
                                       _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static I Widen8(const uint8_t* p) {
    return _mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // fp32 of a biased exponent alone: 0 is 2^-127, 255 is NaN.
  static I E8m0(I e) {
    const __mmask16 odd = _mm512_cmpeq_epi32_mask(e, SetBits(255)) |
                          _mm512_cmpeq_epi32_mask(e, _mm512_setzero_si512());
    return _mm512_mask_or_epi32(Shl<23>(e), odd, Shl<23>(e), SetBits(0x00400000));
  }
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_LANES_AVX512_H_
