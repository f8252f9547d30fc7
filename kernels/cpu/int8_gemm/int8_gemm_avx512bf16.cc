// SPDX-License-Identifier: Apache-2.0
// AVX-512 VNNI. vpdpbusd adds four products of unsigned weights and signed x per lane; the offset
// of the weights is what the accumulators begin with, and the sums are exact modulo 2^32 on the
// way. Registers (32), int8 at 12 tokens x 2 tiles up to 6 x 4: 24 accumulators, the weights, x;
// int4 at 5 x 4: 20 accumulators, 8 nibbles, mask, x.
#include <immintrin.h>

#include "kernels/cpu/int8_gemm/int8_gemm_blocked.h"
#include "kernels/cpu/int8_gemm/int8_gemm_isa.h"
#include "kernels/cpu/int8_gemm/int8_lanes_avx512.h"

namespace kt::avx512bf16 {
namespace {

struct File {};

struct Int8 : Int8Lanes512<File, 128> {
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

struct Int4 : Int8Lanes512<File, 8> {
  static constexpr int kUnitXBytes = 8;
  static constexpr int kTokensMax = 5;
  static constexpr int BlockTokens(int) { return kTokensMax; }
  static constexpr int Tiles(int) { return 4; }

  template <int T, int M>
  static void Step(Acc (&acc)[T][M], const char* w, int64_t tile_bytes, const int8_t* x,
                   int64_t x_stride) {
    const Nibbles<T> codes(w, tile_bytes);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m512i low_x = FourOf(x + m * x_stride), high_x = FourOf(x + m * x_stride + 4);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) acc[t][m] = _mm512_dpbusd_epi32(acc[t][m], codes.low[t], low_x);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) acc[t][m] = _mm512_dpbusd_epi32(acc[t][m], codes.high[t], high_x);
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
