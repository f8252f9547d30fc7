// SPDX-License-Identifier: Apache-2.0
// AVX-512 BF16, VBMI. vdpbf16ps multiplies a pair of k per lane: bf16 weights are used as they lie
// in memory, x waits in the panel as bf16 pairs. Numbers of 8 bits are looked up by magnitude, once
// for either byte of the bf16; those of 4 bits among 16-bit numbers, of which the lookup takes 32,
// so each stands there twice. Registers (32), at 6 tokens x 4 tiles: 24 sums, 4 weights, 1
// broadcast x.
#include <immintrin.h>

#include "kernels/cpu/gemm/gemm_blocked.h"
#include "kernels/cpu/gemm/gemm_isa.h"

namespace kt::avx512bf16 {
namespace {

constexpr uint8_t kFp8Low[128] = {
    0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0,
    0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0,
    0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0,
    0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0,
    0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0,
    0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0,
    0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0,
    0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xc0};
constexpr uint8_t kFp8High[128] = {
    0x00, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c,
    0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d, 0x3d,
    0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e,
    0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f, 0x3f,
    0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40,
    0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41,
    0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42,
    0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x43, 0x7f};
constexpr uint8_t kInt8Low[128] = {
    0x00, 0x80, 0x00, 0x40, 0x80, 0xa0, 0xc0, 0xe0, 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70,
    0x80, 0x88, 0x90, 0x98, 0xa0, 0xa8, 0xb0, 0xb8, 0xc0, 0xc8, 0xd0, 0xd8, 0xe0, 0xe8, 0xf0, 0xf8,
    0x00, 0x04, 0x08, 0x0c, 0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x28, 0x2c, 0x30, 0x34, 0x38, 0x3c,
    0x40, 0x44, 0x48, 0x4c, 0x50, 0x54, 0x58, 0x5c, 0x60, 0x64, 0x68, 0x6c, 0x70, 0x74, 0x78, 0x7c,
    0x80, 0x82, 0x84, 0x86, 0x88, 0x8a, 0x8c, 0x8e, 0x90, 0x92, 0x94, 0x96, 0x98, 0x9a, 0x9c, 0x9e,
    0xa0, 0xa2, 0xa4, 0xa6, 0xa8, 0xaa, 0xac, 0xae, 0xb0, 0xb2, 0xb4, 0xb6, 0xb8, 0xba, 0xbc, 0xbe,
    0xc0, 0xc2, 0xc4, 0xc6, 0xc8, 0xca, 0xcc, 0xce, 0xd0, 0xd2, 0xd4, 0xd6, 0xd8, 0xda, 0xdc, 0xde,
    0xe0, 0xe2, 0xe4, 0xe6, 0xe8, 0xea, 0xec, 0xee, 0xf0, 0xf2, 0xf4, 0xf6, 0xf8, 0xfa, 0xfc, 0xfe};
constexpr uint8_t kInt8High[128] = {
    0x00, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41,
    0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41,
    0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42,
    0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42,
    0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42,
    0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42,
    0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42,
    0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42, 0x42};

constexpr uint16_t kInt4[32] = {0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
                                0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
constexpr uint16_t kFp4[32] = {0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                               0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
                               0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                               0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};

// The bf16 of 64 bytes by their lower 7 bits.
struct Magnitudes {
  __m512i low, high;
  Magnitudes(const uint8_t (&low_table)[128], const uint8_t (&high_table)[128], __m512i bytes)
      : low(LookUp(low_table, bytes)), high(LookUp(high_table, bytes)) {}
  static __m512i LookUp(const uint8_t (&table)[128], __m512i bytes) {
    return _mm512_permutex2var_epi8(_mm512_loadu_si512(table), bytes,
                                    _mm512_loadu_si512(table + 64));
  }
  void SetSigns(__m512i bytes) {
    constexpr int kOrAnd = 0xf8;  // high | (bytes & 0x80)
    high = _mm512_ternarylogic_epi32(high, bytes, _mm512_set1_epi8(-128), kOrAnd);
  }
};

struct Paired {
  using X = int32_t;  // a pair of bf16
  using Acc = __m512;
  using Weight = __m512i;
  static constexpr int kParts = 1, kStepColumns = 2;
  static constexpr int kTokensMax = 6, kPanelTiles = 4;
  static constexpr int ReuseTiles(int) { return 4; }
  static constexpr int StreamTiles(int tokens) { return tokens > 2 ? 2 : 4; }

  static void Fill(const void* x, bool, int64_t at, int count, float, int32_t* out) {
    uint16_t* elements = reinterpret_cast<uint16_t*>(out);
    __builtin_memcpy(elements, static_cast<const uint16_t*>(x) + at, count * sizeof *elements);
    for (; count % 8 != 0; ++count) elements[count] = 0;
  }

  static Acc Zero() { return _mm512_setzero_ps(); }
  static Acc Load(const float* y) { return _mm512_loadu_ps(y); }
  static void Store(float* y, Acc a) { _mm512_storeu_ps(y, a); }
  static Weight LoadWeight(const char* p) { return _mm512_loadu_si512(p); }
  static void StoreWeight(char* p, Weight w) { _mm512_storeu_si512(p, w); }
  static Acc MultiplyAdd(Acc a, Acc b, Acc c) { return _mm512_fmadd_ps(a, b, c); }
  static __m512i Broadcast(const int32_t* x) { return _mm512_set1_epi32(*x); }
  static Acc Add(Acc acc, Weight w, __m512i x) {
    return _mm512_dpbf16_ps(acc, __builtin_bit_cast(__m512bh, w), __builtin_bit_cast(__m512bh, x));
  }

  static Acc Scale(PackedScale kind, int lanes, const uint8_t* scales, int group, int row) {
    const int at = lanes == 1 ? group : group * kTileRows + row;
    switch (kind) {
      case PackedScale::kF32: {
        const float* p = reinterpret_cast<const float*>(scales) + at;
        return lanes == 1 ? _mm512_set1_ps(*p) : _mm512_loadu_ps(p);
      }
      case PackedScale::kBf16: {
        const uint16_t* p = reinterpret_cast<const uint16_t*>(scales) + at;
        const __m512i bits =
            lanes == 1 ? _mm512_set1_epi32(*p)
                       : _mm512_maskz_cvtepu16_epi32(
                             0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
        return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, bits, 16));
      }
      case PackedScale::kE8m0:
        return E8m0(lanes == 1 ? _mm512_set1_epi32(scales[at])
                               : _mm512_maskz_cvtepu8_epi32(
                                     0xffff, _mm_loadu_si128(
                                                 reinterpret_cast<const __m128i*>(scales + at))));
      case PackedScale::kOne:
        break;
    }
    return _mm512_set1_ps(1.0f);
  }

  template <typename>
  static Acc Times(Acc sum) {
    return sum;
  }

  template <typename>
  static Weight Number(Weight w) {
    return w;
  }

  template <PackedCode kCode>
  struct Unit {
    static constexpr int kSteps = kCode == PackedCode::kBf16                                    ? 1
                                  : kCode == PackedCode::kInt4 || kCode == PackedCode::kFp4E2m1 ? 4
                                                                                                : 2;
    static constexpr float kXFactor = 1;

    explicit Unit(const char* p) : first(LoadWeight(p)), second(first) {
      if constexpr (kCode == PackedCode::kFp8E4m3) {
        Magnitudes m(kFp8Low, kFp8High, first);
        m.SetSigns(first);
        SetPairs(m);
      } else if constexpr (kCode == PackedCode::kInt8) {
        const __m512i in_pairs = _mm512_maskz_broadcast_i32x4(
            0xffff, _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
        first = _mm512_shuffle_epi8(_mm512_xor_si512(first, _mm512_set1_epi8(-128)), in_pairs);
        const __m512i magnitude = _mm512_abs_epi8(first);
        Magnitudes m(kInt8Low, kInt8High, magnitude);
        const __mmask64 is_128 = _mm512_movepi8_mask(magnitude);  // beyond the table: 0x4300
        m.high = _mm512_mask_mov_epi8(m.high, is_128, _mm512_set1_epi8(0x43));
        m.SetSigns(first);
        SetPairs(m);
      }
    }

    template <int s>
    Weight Step() const {
      if constexpr (kCode == PackedCode::kInt4 || kCode == PackedCode::kFp4E2m1) {
        const __m512i table = _mm512_loadu_si512(kCode == PackedCode::kInt4 ? kInt4 : kFp4);
        __m512i index = first;  // five bits of each half of a word are looked at
        if constexpr (s > 0) index = _mm512_maskz_srli_epi32(0xffff, first, 4 * s);
        return _mm512_permutexvar_epi16(index, table);
      } else {
        return s == 0 ? first : second;
      }
    }

    void SetPairs(const Magnitudes& m) {
      first = _mm512_unpacklo_epi8(m.low, m.high);
      second = _mm512_unpackhi_epi8(m.low, m.high);
    }

    __m512i first, second;
  };

 private:
  // fp32 of a biased exponent alone: 0 is 2^-127, 255 is NaN.
  static __m512 E8m0(__m512i e) {
    const __mmask16 odd = _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255)) |
                          _mm512_cmpeq_epi32_mask(e, _mm512_setzero_si512());
    const __m512i bits = _mm512_maskz_slli_epi32(0xffff, e, 23);
    return _mm512_castsi512_ps(
        _mm512_mask_or_epi32(bits, odd, bits, _mm512_set1_epi32(0x00400000)));
  }
};

template <PackedCode kCode>
using Product = BlockedProduct<Paired, kCode>;

}  // namespace

void ProductBf16(const ProductArgs& args, int tile_begin, int tile_end) noexcept {
  Product<PackedCode::kBf16>::Run(args, tile_begin, tile_end);
}
void ProductFp8E4m3(const ProductArgs& args, int tile_begin, int tile_end) noexcept {
  Product<PackedCode::kFp8E4m3>::Run(args, tile_begin, tile_end);
}
void ProductInt8(const ProductArgs& args, int tile_begin, int tile_end) noexcept {
  Product<PackedCode::kInt8>::Run(args, tile_begin, tile_end);
}
void ProductInt4(const ProductArgs& args, int tile_begin, int tile_end) noexcept {
  Product<PackedCode::kInt4>::Run(args, tile_begin, tile_end);
}
void ProductFp4E2m1(const ProductArgs& args, int tile_begin, int tile_end) noexcept {
  Product<PackedCode::kFp4E2m1>::Run(args, tile_begin, tile_end);
}

void DecodeBf16(const uint8_t* codes, int units, uint8_t* out, int64_t step_bytes) noexcept {
  Product<PackedCode::kBf16>::DecodeNumbers(codes, units, out, step_bytes);
}
void DecodeFp8E4m3(const uint8_t* codes, int units, uint8_t* out, int64_t step_bytes) noexcept {
  Product<PackedCode::kFp8E4m3>::DecodeNumbers(codes, units, out, step_bytes);
}
void DecodeInt8(const uint8_t* codes, int units, uint8_t* out, int64_t step_bytes) noexcept {
  Product<PackedCode::kInt8>::DecodeNumbers(codes, units, out, step_bytes);
}
void DecodeInt4(const uint8_t* codes, int units, uint8_t* out, int64_t step_bytes) noexcept {
  Product<PackedCode::kInt4>::DecodeNumbers(codes, units, out, step_bytes);
}
void DecodeFp4E2m1(const uint8_t* codes, int units, uint8_t* out, int64_t step_bytes) noexcept {
  Product<PackedCode::kFp4E2m1>::DecodeNumbers(codes, units, out, step_bytes);
}

}  // namespace kt::avx512bf16
