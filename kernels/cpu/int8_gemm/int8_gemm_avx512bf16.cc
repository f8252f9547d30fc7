// SPDX-License-Identifier: Apache-2.0
// AVX-512 VNNI. vpdpbusd adds four products of unsigned weights and signed x per lane; the offset
// of the weights is what the accumulators begin with, and the sums are exact modulo 2^32 on the
// way. Registers (32), int8 at 12 tokens x 2 tiles up to 6 x 4: 24 accumulators, the weights, x;
// int4 at 5 x 4: 20 accumulators, 8 nibbles, mask, x.
#include <immintrin.h>

#include "kernels/cpu/int8_gemm/int8_gemm_blocked.h"
#include "kernels/cpu/int8_gemm/int8_gemm_isa.h"

namespace kt::avx512bf16 {
namespace {

// The four bytes at x in all lanes.
__m512i FourOf(const int8_t* x) {
  int bytes;
  __builtin_memcpy(&bytes, x, sizeof bytes);
  return _mm512_set1_epi32(bytes);
}

template <int kOffset>
struct Blocks {
  using Acc = __m512i;
  static Acc Start(int32_t x_sum) { return _mm512_set1_epi32(-kOffset * x_sum); }
  static void Save(int32_t* sums, Acc acc) { _mm512_storeu_si512(sums, acc); }
  static void Scale(const int32_t* sums, const char* w_scales, float x_scale, float* y) {
    const __m512 w = _mm512_castsi512_ps(_mm512_loadu_si512(w_scales));
    // gcc 12 takes the unmasked conversion for a use of an uninitialised value.
    const __m512 sum = _mm512_maskz_cvtepi32_ps(0xffff, _mm512_loadu_si512(sums));
    _mm512_storeu_ps(y, _mm512_mul_ps(_mm512_mul_ps(w, _mm512_set1_ps(x_scale)), sum));
  }
};

struct Int8 : Blocks<128> {
  static constexpr int kUnitXBytes = 4;
  static constexpr int kTokensMax = 12;
  // Two blocks that read their weights once are not slowed down by memory; more are faster narrow,
  // with fewer broadcasts of x to a product.
  static constexpr int BlockTokens(int tokens) { return tokens > 2 * kTokensMax ? 6 : kTokensMax; }
  static constexpr int Tiles(int tokens) { return tokens > 8 ? 2 : tokens > 6 ? 3 : 4; }

  template <int T, int M>
  static void Step(Acc (&acc)[T][M], const char* w, int64_t tile_bytes, const int8_t* x,
                   int64_t x_stride) {
    __m512i codes[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) codes[t] = _mm512_loadu_si512(w + t * tile_bytes);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m512i four = FourOf(x + m * x_stride);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) acc[t][m] = _mm512_dpbusd_epi32(acc[t][m], codes[t], four);
    }
  }
};

struct Int4 : Blocks<8> {
  static constexpr int kUnitXBytes = 8;
  static constexpr int kTokensMax = 5;
  static constexpr int BlockTokens(int) { return kTokensMax; }
  static constexpr int Tiles(int) { return 4; }

  template <int T, int M>
  static void Step(Acc (&acc)[T][M], const char* w, int64_t tile_bytes, const int8_t* x,
                   int64_t x_stride) {
    const __m512i mask = _mm512_set1_epi8(15);
    __m512i low[T], high[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      const __m512i codes = _mm512_loadu_si512(w + t * tile_bytes);
      low[t] = _mm512_and_si512(codes, mask);
      high[t] = _mm512_and_si512(_mm512_srli_epi16(codes, 4), mask);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m512i low_x = FourOf(x + m * x_stride), high_x = FourOf(x + m * x_stride + 4);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) acc[t][m] = _mm512_dpbusd_epi32(acc[t][m], low[t], low_x);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) acc[t][m] = _mm512_dpbusd_epi32(acc[t][m], high[t], high_x);
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

}  // namespace kt::avx512bf16
