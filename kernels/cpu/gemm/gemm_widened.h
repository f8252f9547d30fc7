// SPDX-License-Identifier: Apache-2.0
// Products for instruction sets without bf16 arithmetic, included by their files only: weights and
// x become fp32. L, a struct of that file's anonymous namespace, is one register of fp32 or of
// 32-bit words, a word for each row.
//
// Codes become fp32 in two or three instructions, off by a power of two that the sum makes up for:
// integers are converted where they lie in the upper bits of a word, the bits of an FP8 are moved
// to where those of an fp32 lie (its subnormals too), so that it is too small by 2^120.
//
// L provides kParts, F, I, and what is used of it below: FromBits(i) reinterprets, ToFloat(i)
// converts, Zeros8Low/High(i) put a zero byte below each byte of the lower or upper halves of every
// 128 bits, LookUp8(table, i) takes bytes of 128-bit tables, Widen16(p) and Widen8(p) load unsigned
// numbers.
#ifndef KT_KERNELS_CPU_GEMM_GEMM_WIDENED_H_
#define KT_KERNELS_CPU_GEMM_GEMM_WIDENED_H_

#include <cstdint>

#include "kernels/cpu/gemm/gemm_args.h"

namespace kt {

template <typename L>
struct Widened {
  using X = float;
  using Acc = typename L::F;
  using Weight = typename L::F;
  using I = typename L::I;
  static constexpr int kParts = L::kParts, kStepColumns = 1;
  static constexpr int kTokensMax = L::kTokensMax, kPanelTiles = L::kPanelTiles;
  static constexpr int ReuseTiles(int tokens) { return L::ReuseTiles(tokens); }
  static constexpr int StreamTiles(int tokens) { return L::StreamTiles(tokens); }

  static void Fill(const void* x, bool is_bf16, int64_t at, int count, float factor, float* out) {
    int i = 0;
    const typename L::F f = L::Set(factor);
    if (is_bf16) {
      const uint16_t* row = static_cast<const uint16_t*>(x) + at;
      for (; i + L::kLanes <= count; i += L::kLanes)
        L::Store(out + i, L::Mul(L::FromBits(L::template Shl<16>(L::Widen16(row + i))), f));
      for (; i < count; ++i) out[i] = __builtin_bit_cast(float, uint32_t{row[i]} << 16) * factor;
    } else {
      const float* row = static_cast<const float*>(x) + at;
      for (; i + L::kLanes <= count; i += L::kLanes) L::Store(out + i, L::Mul(L::Load(row + i), f));
      for (; i < count; ++i) out[i] = row[i] * factor;
    }
    for (; i % 8 != 0; ++i) out[i] = 0;
  }

  static Acc Zero() { return L::Zero(); }
  static Acc Load(const float* y) { return L::Load(y); }
  static void Store(float* y, Acc a) { L::Store(y, a); }
  static Weight LoadWeight(const char* p) { return L::Load(reinterpret_cast<const float*>(p)); }
  static void StoreWeight(char* p, Weight w) { L::Store(reinterpret_cast<float*>(p), w); }
  static Acc MultiplyAdd(Acc a, Acc b, Acc c) { return L::Fma(a, b, c); }
  static typename L::F Broadcast(const float* x) { return L::Set(*x); }
  static Acc Add(Acc acc, Weight w, typename L::F x) { return L::Fma(w, x, acc); }

  static Acc Scale(PackedScale kind, int lanes, const uint8_t* scales, int group, int row) {
    const int at = lanes == 1 ? group : group * kTileRows + row;
    switch (kind) {
      case PackedScale::kF32: {
        const float* p = reinterpret_cast<const float*>(scales) + at;
        return lanes == 1 ? L::Set(*p) : L::Load(p);
      }
      case PackedScale::kBf16: {
        const uint16_t* p = reinterpret_cast<const uint16_t*>(scales) + at;
        return L::FromBits(L::template Shl<16>(lanes == 1 ? L::SetBits(*p) : L::Widen16(p)));
      }
      case PackedScale::kE8m0:
        return L::FromBits(L::E8m0(lanes == 1 ? L::SetBits(scales[at]) : L::Widen8(scales + at)));
      case PackedScale::kOne:
        break;
    }
    return L::Set(1.0f);
  }

  template <typename Unit>
  static Acc Times(Acc sum) {
    return Unit::kSumFactor == 1 ? sum : L::Mul(sum, L::Set(Unit::kSumFactor));
  }

  template <typename Unit>
  static Weight Number(Weight w) {
    constexpr float kFactor = Unit::kXFactor * Unit::kSumFactor;
    return kFactor == 1 ? w : L::Mul(w, L::Set(kFactor));
  }

  template <PackedCode kCode>
  struct Unit {
    static constexpr int kSteps = kCode == PackedCode::kBf16                                    ? 2
                                  : kCode == PackedCode::kInt4 || kCode == PackedCode::kFp4E2m1 ? 8
                                                                                                : 4;
    static constexpr float kXFactor = kCode == PackedCode::kFp8E4m3 ? 0x1p64f : 1.0f;
    static constexpr float kSumFactor = kCode == PackedCode::kFp8E4m3   ? 0x1p56f
                                        : kCode == PackedCode::kInt8    ? 0x1p-24f
                                        : kCode == PackedCode::kInt4    ? 0x1p-28f
                                        : kCode == PackedCode::kFp4E2m1 ? 0x1p-25f
                                                                        : 1.0f;

    explicit Unit(const char* p) : codes(L::LoadBits(p)), odd_nibbles(codes) {
      if constexpr (kCode == PackedCode::kInt8) codes = L::Xor(codes, L::SetBits(0x80808080));
      if constexpr (kCode == PackedCode::kInt4) codes = L::Xor(codes, L::SetBits(0x88888888));
      if constexpr (kCode == PackedCode::kFp4E2m1) {
        static constexpr int8_t kDoubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                0, -1, -2, -3, -4, -6, -8, -12};
        const I table = L::Table8(kDoubled), nibble = L::SetBits(0x0f0f0f0f);
        odd_nibbles = L::LookUp8(table, L::And(L::template Shr<4>(codes), nibble));
        codes = L::LookUp8(table, L::And(codes, nibble));
      }
    }

    template <int s>
    Weight Step() const {
      if constexpr (kCode == PackedCode::kBf16) {
        return L::FromBits(s == 0 ? L::template Shl<16>(codes)
                                  : L::And(codes, L::SetBits(0xffff0000)));
      } else if constexpr (kCode == PackedCode::kFp8E4m3) {
        const I pair = s < 2 ? L::Zeros8Low(codes) : L::Zeros8High(codes);
        const I upper = s % 2 == 0 ? L::template Shl<16>(pair) : pair;
        return L::FromBits(L::And(L::template Sar<4>(upper), L::SetBits(0x87f00000)));
      } else if constexpr (kCode == PackedCode::kInt8) {
        return Bits<8, s>(codes);
      } else {
        constexpr int kNibble = s % 2 * 4 + s / 2;
        if constexpr (kCode == PackedCode::kInt4) return Bits<4, kNibble>(codes);
        return Bits<8, kNibble / 2>(kNibble % 2 == 0 ? codes : odd_nibbles);
      }
    }

    // The i-th signed number of kBits bits of each word, times 2^(32 - kBits).
    template <int kBits, int i>
    static Weight Bits(I words) {
      constexpr int kUp = 32 - kBits * (i + 1);
      if constexpr (kUp > 0) words = L::template Shl<kUp>(words);
      if constexpr (i > 0) words = L::And(words, L::SetBits(0xffffffffu << (32 - kBits)));
      return L::ToFloat(words);
    }

    I codes, odd_nibbles;
  };
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_GEMM_WIDENED_H_
