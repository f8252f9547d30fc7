// SPDX-License-Identifier: Apache-2.0
// AVX-512 BF16, VBMI. vdpbf16ps multiplies a pair of k per lane: bf16 weights are used as they lie
// in memory, x waits in the panel as bf16 pairs. Numbers of 8 bits are looked up by magnitude, once
// for either byte of the bf16; those of 4 bits among 16-bit numbers, of which the lookup takes 32,
// so each stands there twice. Registers (32), at 6 tokens x 4 tiles: 24 sums, 4 weights, 1
// broadcast x.
#include <immintrin.h>

#include "kernels/cpu/gemm/gemm_blocked.h"
#include "kernels/cpu/gemm/gemm_isa.h"
#include "kernels/cpu/gemm/gemm_widened.h"
#include "kernels/cpu/gemm/lanes_avx512.h"

namespace kt::avx512bf16 {
namespace {

constexpr uint16_t Bf16(float exact) {
  return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, exact) >> 16);
}
constexpr float PowerOfTwo(int exponent) {
  return __builtin_bit_cast(float, uint32_t(127 + exponent) << 23);
}

// The two bytes of the bf16 of 128 magnitudes.
struct ByteTable {
  uint8_t low[128], high[128];
};
constexpr ByteTable TableOf(float (*number)(int code)) {
  ByteTable t{};
  for (int code = 0; code < 128; ++code) {
    t.low[code] = static_cast<uint8_t>(Bf16(number(code)));
    t.high[code] = static_cast<uint8_t>(Bf16(number(code)) >> 8);
  }
  return t;
}
constexpr ByteTable kFp8 = TableOf([](int code) {
  const int exponent = code / 8, mantissa = code % 8;
  return exponent == 0 ? static_cast<float>(mantissa) * PowerOfTwo(-9)
                       : static_cast<float>(8 + mantissa) * PowerOfTwo(exponent - 10);
});
constexpr ByteTable kInt8 = TableOf([](int code) { return static_cast<float>(code); });

// The bf16 of each nibble, twice.
struct NibbleTable {
  uint16_t number[32];
};
constexpr NibbleTable NibblesOf(float (*number)(int code)) {
  NibbleTable t{};
  for (int i = 0; i < 32; ++i) t.number[i] = Bf16(number(i % 16));
  return t;
}
constexpr NibbleTable kInt4 = NibblesOf([](int code) { return static_cast<float>(code - 8); });
constexpr NibbleTable kFp4 = NibblesOf([](int code) {
  constexpr float kMagnitude[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code < 8 ? kMagnitude[code] : -kMagnitude[code - 8];
});

// The bf16 of 64 bytes by their lower 7 bits.
struct Magnitudes {
  __m512i low, high;
  Magnitudes(const ByteTable& table, __m512i bytes)
      : low(LookUp(table.low, bytes)), high(LookUp(table.high, bytes)) {}
  static __m512i LookUp(const uint8_t (&table)[128], __m512i bytes) {
    return _mm512_permutex2var_epi8(_mm512_loadu_si512(table), bytes,
                                    _mm512_loadu_si512(table + 64));
  }
  void SetSigns(__m512i bytes) {
    constexpr int kOrAnd = 0xf8;  // high | (bytes & 0x80)
    high = _mm512_ternarylogic_epi32(high, bytes, _mm512_set1_epi8(-128), kOrAnd);
  }
};

struct File {};

// Sums, scales and register blocks are those of fp32 arithmetic.
struct Paired : Widened<Lanes512<File>> {
  using X = int32_t;  // a pair of bf16
  using Weight = __m512i;
  static constexpr int kStepColumns = 2;

  static void Fill(const void* x, bool, int64_t at, int count, float, int32_t* out) {
    uint16_t* elements = reinterpret_cast<uint16_t*>(out);
    __builtin_memcpy(elements, static_cast<const uint16_t*>(x) + at, count * sizeof *elements);
    for (; count % 8 != 0; ++count) elements[count] = 0;
  }

  static Weight LoadWeight(const char* p) { return _mm512_loadu_si512(p); }
  static void StoreWeight(char* p, Weight w) { _mm512_storeu_si512(p, w); }
  static __m512i Broadcast(const int32_t* x) { return _mm512_set1_epi32(*x); }
  static Acc Add(Acc acc, Weight w, __m512i x) {
    return _mm512_dpbf16_ps(acc, __builtin_bit_cast(__m512bh, w), __builtin_bit_cast(__m512bh, x));
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
        Magnitudes m(kFp8, first);
        m.SetSigns(first);
        SetPairs(m);
      } else if constexpr (kCode == PackedCode::kInt8) {
        const __m512i in_pairs = _mm512_maskz_broadcast_i32x4(
            0xffff, _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
        first = _mm512_shuffle_epi8(_mm512_xor_si512(first, _mm512_set1_epi8(-128)), in_pairs);
        const __m512i magnitude = _mm512_abs_epi8(first);
        Magnitudes m(kInt8, magnitude);
        const __mmask64 is_128 = _mm512_movepi8_mask(magnitude);  // beyond the table: 0x4300
        m.high = _mm512_mask_mov_epi8(m.high, is_128, _mm512_set1_epi8(0x43));
        m.SetSigns(first);
        SetPairs(m);
      }
    }

    template <int s>
    Weight Step() const {
      if constexpr (kCode == PackedCode::kInt4 || kCode == PackedCode::kFp4E2m1) {
        const __m512i table =
            _mm512_loadu_si512((kCode == PackedCode::kInt4 ? kInt4 : kFp4).number);
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
};

}  // namespace

KT_DEFINE_PRODUCTS(Paired)
KT_DEFINE_DECODERS(Paired)

}  // namespace kt::avx512bf16
