// SPDX-License-Identifier: Apache-2.0
// AVX-512 BW. Numbers of few bits are looked up among 32 bf16 in a register.
#include <immintrin.h>

#include "kernels/cpu/gemm/gemm_isa.h"

namespace kt::avx512f {
namespace {

__m256i Load256(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// The bf16 of each nibble, twice: the lookup takes five bits.
constexpr uint16_t kInt4[32] = {0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
                                0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
constexpr uint16_t kFp4[32] = {0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                               0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
                               0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                               0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};

// A lane of 32 bits gets its row's byte twice: as it is, its low nibble in front, and 12 bits up,
// its high nibble at the bottom of the upper half.
void DecodeNibbles(const uint16_t (&values)[32], const uint8_t* codes, int pairs, uint8_t* out) {
  const __m512i table = _mm512_loadu_si512(values);
  const int ahead = pairs * 16;
  for (; pairs > 0; --pairs, codes += 16, out += 64) {
    __builtin_prefetch(codes + ahead);
    const __m512i bytes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const __m512i index = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(index, table));
  }
}

}  // namespace

// A normal number's bf16 is its exponent and mantissa shifted by 4 plus 120 << 7; the eight
// subnormal magnitudes are looked up.
void DecodeFp8E4m3(const uint8_t* codes, int pairs, uint8_t* out) noexcept {
  static constexpr uint16_t kSubnormals[32] = {0x0000, 0x3b00, 0x3b80, 0x3bc0,
                                               0x3c00, 0x3c20, 0x3c40, 0x3c60};
  const __m512i table = _mm512_loadu_si512(kSubnormals);
  const __m512i sign = _mm512_set1_epi16(static_cast<short>(0x8000));
  const __m512i mask = _mm512_set1_epi16(0x7f), exponent = _mm512_set1_epi16(0x78);
  const __m512i bias = _mm512_set1_epi16(0x3c00), nan = _mm512_set1_epi16(0x7fc0);
  const int ahead = pairs * 32;
  for (; pairs > 0; --pairs, codes += 32, out += 64) {
    __builtin_prefetch(codes + ahead);
    const __m512i code = _mm512_cvtepi8_epi16(Load256(codes));  // the sign goes where it belongs
    const __m512i magnitude = _mm512_and_si512(code, mask);
    const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), bias);
    __m512i value = _mm512_mask_mov_epi16(_mm512_permutexvar_epi16(magnitude, table),
                                          _mm512_test_epi16_mask(code, exponent), normal);
    value = _mm512_mask_mov_epi16(value, _mm512_cmpge_epu16_mask(magnitude, mask), nan);
    _mm512_storeu_si512(out, _mm512_or_si512(value, _mm512_and_si512(code, sign)));
  }
}

// A byte b in the mantissa of 2^23 is 2^23 + b.
void DecodeInt8(const uint8_t* codes, int pairs, uint8_t* out) noexcept {
  const __m512i byte = _mm512_set1_epi32(0xff), upper = _mm512_set1_epi32(-0x10000);
  const __m512i power = _mm512_set1_epi32(0x4b000000);
  const __m512 zero = _mm512_set1_ps(0x1p23f + 128);
  const auto number = [&](__m512i b) {
    const __m512i sum = _mm512_or_si512(_mm512_and_si512(b, byte), power);
    return _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(sum), zero));
  };
  const int ahead = pairs * 32;
  for (; pairs > 0; --pairs, codes += 32, out += 64) {
    __builtin_prefetch(codes + ahead);
    const __m512i bytes = _mm512_cvtepi8_epi16(Load256(codes));
    const __m512i even = number(bytes), odd = number(_mm512_srli_epi32(bytes, 16));
    _mm512_storeu_si512(out,
                        _mm512_or_si512(_mm512_srli_epi32(even, 16), _mm512_and_si512(odd, upper)));
  }
}

void DecodeInt4(const uint8_t* codes, int pairs, uint8_t* out) noexcept {
  DecodeNibbles(kInt4, codes, pairs, out);
}
void DecodeFp4E2m1(const uint8_t* codes, int pairs, uint8_t* out) noexcept {
  DecodeNibbles(kFp4, codes, pairs, out);
}

}  // namespace kt::avx512f
