// SPDX-License-Identifier: Apache-2.0
// AVX-512F/BW without VNNI: as the AVX2 file, a tile's 16 lanes in one register; x takes w's sign
// by a masked subtraction. Registers (32), int8 at 5 tokens x 4 tiles: 20 accumulators, 4 |w|, x,
// zero, ones, products; int4 at 4 tokens x 4 tiles: 16 accumulators, 8 of nibbles, 2 of x, mask,
// ones, products.
#include <immintrin.h>

#include "kernels/cpu/int8_gemm/int8_gemm_blocked.h"
#include "kernels/cpu/int8_gemm/int8_gemm_isa.h"
#include "kernels/cpu/int8_gemm/int8_lanes_avx512.h"

namespace kt::avx512f {
namespace {

struct File {};

__m512i AddPairs(__m512i sum, __m512i pairs) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

template <int kOffset, int kTokens>
struct Blocks : Int8Lanes512<File, kOffset> {
  static constexpr int kTokensMax = kTokens;
  static constexpr int BlockTokens(int) { return kTokensMax; }
  static constexpr int Tiles(int) { return 4; }
};

struct Int8 : Blocks<0, 5> {
  static constexpr int kUnitXBytes = 4;

  template <int T, int M>
  static void Step(Acc (&acc)[T][M], const char* w, int64_t tile_bytes, const int8_t* x,
                   int64_t x_stride) {
    __m512i magnitudes[T];
    __mmask64 negative[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      const __m512i codes =
          _mm512_xor_si512(_mm512_loadu_si512(w + t * tile_bytes), _mm512_set1_epi8(-128));
      magnitudes[t] = _mm512_abs_epi8(codes);
      negative[t] = _mm512_movepi8_mask(codes);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m512i four = FourOf(x + m * x_stride);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        const __m512i signed_x =
            _mm512_mask_sub_epi8(four, negative[t], _mm512_setzero_si512(), four);
        acc[t][m] = AddPairs(acc[t][m], _mm512_maddubs_epi16(magnitudes[t], signed_x));
      }
    }
  }
};

struct Int4 : Blocks<8, 4> {
  static constexpr int kUnitXBytes = 8;

  template <int T, int M>
  static void Step(Acc (&acc)[T][M], const char* w, int64_t tile_bytes, const int8_t* x,
                   int64_t x_stride) {
    const Nibbles<T> codes(w, tile_bytes);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m512i low_x = FourOf(x + m * x_stride), high_x = FourOf(x + m * x_stride + 4);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        acc[t][m] =
            AddPairs(acc[t][m], _mm512_add_epi16(_mm512_maddubs_epi16(codes.low[t], low_x),
                                                 _mm512_maddubs_epi16(codes.high[t], high_x)));
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

}  // namespace kt::avx512f
