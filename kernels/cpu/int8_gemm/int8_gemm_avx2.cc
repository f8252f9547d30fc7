// SPDX-License-Identifier: Apache-2.0
// AVX2. vpmaddubsw multiplies unsigned by signed bytes and adds neighbours up in 16 bits with
// saturation, vpmaddwd by one adds those up in 32 bits. A tile's 16 lanes are two ymm registers.
//
// int8: |w| times x with w's sign. Codes are -128 ... 127 by -127 ... 127, so a pair is at most 2 *
// 128 * 127 = 32,512 and does not saturate. Registers (16), at 4 tokens: 8 accumulators, w and |w|,
// x, ones, products.
//
// int4: nibbles 0 ... 15 times x, whose offset the accumulators begin with. The pairs of both
// nibbles are at most 4 * 15 * 127 = 7,620. Registers, at 4 tokens: 8 accumulators, 4 of nibbles, 2
// of x, ones, products.
#include <immintrin.h>

#include "kernels/cpu/int8_gemm/int8_gemm_blocked.h"
#include "kernels/cpu/int8_gemm/int8_gemm_isa.h"

namespace kt::avx2 {
namespace {

struct Sums {
  __m256i half[2];
};

__m256i Weights(const char* w) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)); }

// The four bytes at x in all lanes.
__m256i FourOf(const int8_t* x) {
  int bytes;
  __builtin_memcpy(&bytes, x, sizeof bytes);
  return _mm256_set1_epi32(bytes);
}

__m256i AddPairs(__m256i sum, __m256i pairs) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

template <int kOffset>
struct Blocks {
  using Acc = Sums;
  static constexpr int kTokensMax = 4;
  static constexpr int BlockTokens(int) { return kTokensMax; }
  static constexpr int Tiles(int tokens) { return tokens > 2 ? 1 : tokens > 1 ? 2 : 4; }

  static Acc Start(int32_t x_sum) {
    const __m256i offset = _mm256_set1_epi32(-kOffset * x_sum);
    return {offset, offset};
  }
  static void Save(int32_t* sums, Acc acc) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), acc.half[0]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + 8), acc.half[1]);
  }
  static void Scale(const int32_t* sums, const char* w_scales, float x_scale, float* y) {
    for (int i = 0; i < 16; i += 8) {
      const __m256i sum = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + i));
      const __m256 w = _mm256_castsi256_ps(Weights(w_scales + i * sizeof(float)));
      _mm256_storeu_ps(
          y + i, _mm256_mul_ps(_mm256_mul_ps(w, _mm256_set1_ps(x_scale)), _mm256_cvtepi32_ps(sum)));
    }
  }
};

struct Int8 : Blocks<0> {
  static constexpr int kUnitXBytes = 4;

  template <int T, int M>
  static void Step(Acc (&acc)[T][M], const char* w, int64_t tile_bytes, const int8_t* x,
                   int64_t x_stride) {
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m256i codes =
            _mm256_xor_si256(Weights(w + t * tile_bytes + 32 * h), _mm256_set1_epi8(-128));
        const __m256i magnitudes = _mm256_abs_epi8(codes);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          const __m256i signed_x = _mm256_sign_epi8(FourOf(x + m * x_stride), codes);
          acc[t][m].half[h] =
              AddPairs(acc[t][m].half[h], _mm256_maddubs_epi16(magnitudes, signed_x));
        }
      }
    }
  }
};

struct Int4 : Blocks<8> {
  static constexpr int kUnitXBytes = 8;

  template <int T, int M>
  static void Step(Acc (&acc)[T][M], const char* w, int64_t tile_bytes, const int8_t* x,
                   int64_t x_stride) {
    const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      __m256i low[2], high[2];
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m256i codes = Weights(w + t * tile_bytes + 32 * h);
        low[h] = _mm256_and_si256(codes, mask);
        high[h] = _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask);
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const __m256i low_x = FourOf(x + m * x_stride), high_x = FourOf(x + m * x_stride + 4);
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          acc[t][m].half[h] =
              AddPairs(acc[t][m].half[h], _mm256_add_epi16(_mm256_maddubs_epi16(low[h], low_x),
                                                           _mm256_maddubs_epi16(high[h], high_x)));
        }
      }
    }
  }
};

}  // namespace

void MultiplyInt8(const Int8MultiplyArgs& args, int tile_begin, int tile_end) noexcept {
  BlockedInt8Gemm<Int8>::Run(args, tile_begin, tile_end);
}
void MultiplyInt4(const Int8MultiplyArgs& args, int tile_begin, int tile_end) noexcept {
  BlockedInt8Gemm<Int4>::Run(args, tile_begin, tile_end);
}

}  // namespace kt::avx2
