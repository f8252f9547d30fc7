// SPDX-License-Identifier: Apache-2.0
// AVX2. Numbers of few bits are looked up or computed as the two bytes of a bf16, which are then
// interleaved.
#include <immintrin.h>

#include "kernels/cpu/gemm/gemm_isa.h"

namespace kt::avx2 {
namespace {

__m128i Load128(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
__m256i Load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
void Store(uint8_t* p, __m256i x) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), x); }
__m256i Both(const uint8_t (&table)[16]) { return _mm256_broadcastsi128_si256(Load128(table)); }
// The halves of two registers as they follow each other in memory.
void StoreHalves(uint8_t* p, __m256i low, __m256i high) {
  Store(p, _mm256_permute2x128_si256(low, high, 0x20));
  Store(p + 32, _mm256_permute2x128_si256(low, high, 0x31));
}

// The bytes of the bf16 that each nibble stands for.
struct Nibbles {
  uint8_t low[16], high[16];
};
constexpr Nibbles kInt4 = {{0x00, 0xe0, 0xc0, 0xa0, 0x80, 0x40, 0x00, 0x80, 0x00, 0x80, 0x00, 0x40,
                            0x80, 0xa0, 0xc0, 0xe0},
                           {0xc1, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xbf, 0x00, 0x3f, 0x40, 0x40,
                            0x40, 0x40, 0x40, 0x40}};
constexpr Nibbles kFp4 = {{0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0, 0x00, 0x00, 0x80, 0xc0,
                           0x00, 0x40, 0x80, 0xc0},
                          {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x80, 0xbf, 0xbf, 0xbf,
                           0xc0, 0xc0, 0xc0, 0xc0}};

// A byte widened to 16 bits and joined with itself 4 bits up has its low nibble at the bottom of
// the lower byte, its high nibble at the bottom of the upper one.
void DecodeNibbles(const Nibbles& nibbles, const uint8_t* codes, int pairs, uint8_t* out) {
  const __m256i low = Both(nibbles.low), high = Both(nibbles.high);
  const __m256i mask = _mm256_set1_epi8(15);
  const int ahead = pairs * 16;
  for (; pairs > 0; --pairs, codes += 16, out += 64) {
    __builtin_prefetch(codes + ahead);
    const __m256i bytes = _mm256_cvtepu8_epi16(Load128(codes));
    const __m256i index =
        _mm256_and_si256(_mm256_or_si256(bytes, _mm256_slli_epi16(bytes, 4)), mask);
    const __m256i l = _mm256_shuffle_epi8(low, index), h = _mm256_shuffle_epi8(high, index);
    StoreHalves(out, _mm256_unpacklo_epi8(l, h), _mm256_unpackhi_epi8(l, h));
  }
}

}  // namespace

// A normal number's bf16 is its exponent and mantissa shifted by 4 plus 120 << 7; the eight
// subnormal magnitudes are looked up.
void DecodeFp8E4m3(const uint8_t* codes, int pairs, uint8_t* out) noexcept {
  static constexpr uint8_t kLow[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60};
  static constexpr uint8_t kHigh[16] = {0x00, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c};
  const __m256i low = Both(kLow), high = Both(kHigh);
  const __m256i sign = _mm256_set1_epi8(-128), nan = _mm256_set1_epi8(0x7f);
  const __m256i nibble = _mm256_set1_epi8(15), bias = _mm256_set1_epi8(0x3c);
  const __m256i eight = _mm256_set1_epi8(8);
  const int ahead = pairs * 32;
  for (; pairs > 0; --pairs, codes += 32, out += 64) {
    __builtin_prefetch(codes + ahead);
    const __m256i code = Load(codes), magnitude = _mm256_andnot_si256(sign, code);
    const __m256i subnormal = _mm256_cmpgt_epi8(eight, magnitude);
    __m256i l = _mm256_andnot_si256(nibble, _mm256_slli_epi16(magnitude, 4));
    __m256i h = _mm256_add_epi8(_mm256_and_si256(_mm256_srli_epi16(magnitude, 4), nibble), bias);
    l = _mm256_blendv_epi8(l, _mm256_shuffle_epi8(low, magnitude), subnormal);
    h = _mm256_blendv_epi8(h, _mm256_shuffle_epi8(high, magnitude), subnormal);
    h = _mm256_or_si256(h, _mm256_and_si256(_mm256_cmpeq_epi8(magnitude, nan), nan));
    h = _mm256_or_si256(h, _mm256_and_si256(code, sign));
    StoreHalves(out, _mm256_unpacklo_epi8(l, h), _mm256_unpackhi_epi8(l, h));
  }
}

// A byte b in the mantissa of 2^23 is 2^23 + b.
void DecodeInt8(const uint8_t* codes, int pairs, uint8_t* out) noexcept {
  const __m256i byte = _mm256_set1_epi32(0xff),
                upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  const __m256 power = _mm256_set1_ps(0x1p23f), zero = _mm256_set1_ps(0x1p23f + 128);
  const auto number = [&](__m256i b) {
    return _mm256_castps_si256(_mm256_sub_ps(_mm256_or_ps(_mm256_castsi256_ps(b), power), zero));
  };
  const int ahead = pairs * 32;
  for (int half = 0; half < 2 * pairs; ++half, codes += 16, out += 32) {
    if (half % 2 == 0) __builtin_prefetch(codes + ahead);
    const __m256i bytes = _mm256_cvtepu8_epi16(Load128(codes));  // pairs of 8 rows
    const __m256i even = number(_mm256_and_si256(bytes, byte));
    const __m256i odd = number(_mm256_srli_epi32(bytes, 16));
    Store(out, _mm256_or_si256(_mm256_srli_epi32(even, 16), _mm256_and_si256(odd, upper)));
  }
}

void DecodeInt4(const uint8_t* codes, int pairs, uint8_t* out) noexcept {
  DecodeNibbles(kInt4, codes, pairs, out);
}
void DecodeFp4E2m1(const uint8_t* codes, int pairs, uint8_t* out) noexcept {
  DecodeNibbles(kFp4, codes, pairs, out);
}

}  // namespace kt::avx2
