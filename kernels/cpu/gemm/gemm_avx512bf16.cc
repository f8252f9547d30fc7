// SPDX-License-Identifier: Apache-2.0
// AVX-512 BF16. vdpbf16ps multiplies a pair of k per lane: weights are used as they lie in memory,
// x waits in the panel as bf16 pairs. Registers (32), at 6 tokens x 4 tiles: 24 accumulators, 4
// weights, 1 broadcast x.
#include <immintrin.h>

#include "kernels/cpu/gemm/gemm_blocked.h"
#include "kernels/cpu/gemm/gemm_isa.h"

namespace kt::avx512bf16 {
namespace {

struct Paired {
  using Element = uint16_t;
  using Acc = __m512;
  static constexpr int kTokensMax = 6;
  static constexpr int ReuseTiles(int) { return 4; }
  static constexpr int StreamTiles(int) { return 2; }

  static void Fill(const uint16_t* x, int count, uint16_t* out) {
    __builtin_memcpy(out, x, count * sizeof *x);
    if (count & 1) out[count] = 0;
  }

  static Acc Zero() { return _mm512_setzero_ps(); }
  static Acc Load(const float* y) { return _mm512_loadu_ps(y); }
  static void Store(float* y, Acc a) { _mm512_storeu_ps(y, a); }
  static Acc Fold(Acc scales, Acc a, Acc y) { return _mm512_fmadd_ps(scales, a, y); }

  template <int T, int M>
  static void Step(Acc (&acc)[T][M], const char* w, int64_t tile_bytes, const uint16_t* x,
                   int x_stride) {
    __m512bh weights[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t)
      weights[t] = __builtin_bit_cast(__m512bh, _mm512_loadu_si512(w + t * tile_bytes));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      int pair_bits;
      __builtin_memcpy(&pair_bits, x + m * x_stride, sizeof pair_bits);
      __m512bh pair = __builtin_bit_cast(__m512bh, _mm512_set1_epi32(pair_bits));
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) acc[t][m] = _mm512_dpbf16_ps(acc[t][m], weights[t], pair);
    }
  }
};

}  // namespace

void MultiplyBf16(const MultiplyArgs& args, int tile_begin, int tile_end) noexcept {
  BlockedGemm<Paired>::Run<uint16_t>(args, tile_begin, tile_end);
}

}  // namespace kt::avx512bf16
