// SPDX-License-Identifier: Apache-2.0
// AVX-512F. One zmm register per tile; weights widen as in gemm_avx2.cc. x waits in the panel as
// fp32. Registers (32), at 6 tokens x 4 tiles: 24 accumulators, 4 widened weights, 1 broadcast x, 1
// mask.
#include <immintrin.h>

#include "kernels/cpu/gemm/gemm_blocked.h"
#include "kernels/cpu/gemm/gemm_isa.h"

namespace kt::avx512f {
namespace {

struct Widened {
  using Element = float;
  using Acc = __m512;
  static constexpr int kTokensMax = 6;
  static constexpr int ReuseTiles(int) { return 4; }
  static constexpr int StreamTiles(int) { return 2; }

  static void Fill(const uint16_t* x, int count, float* out) {
    int i = 0;
    for (; i + 8 <= count; i += 8) {
      __m256i wide =
          _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i)));
      _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
    }
    for (; i < count; ++i)
      out[i] = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(int{x[i]} << 16)));
    if (count & 1) out[count] = 0;
  }
  static void Fill(const float* x, int count, float* out) {
    __builtin_memcpy(out, x, count * sizeof *x);
    if (count & 1) out[count] = 0;
  }

  static Acc Zero() { return _mm512_setzero_ps(); }
  static Acc Load(const float* y) { return _mm512_loadu_ps(y); }
  static void Store(float* y, Acc a) { _mm512_storeu_ps(y, a); }
  static Acc Fold(Acc scales, Acc a, Acc y) { return _mm512_fmadd_ps(scales, a, y); }
  static __m512i Weights(const char* w) { return _mm512_loadu_si512(w); }
  // The masked form: g++ 12 warns of an uninitialised value inside the plain one. It compiles to
  // the same instruction.
  static __m512 Shifted(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, pairs, 16));
  }

  template <int T, int M>
  static void Step(Acc (&acc)[T][M], const char* w, int64_t tile_bytes, const float* x,
                   int x_stride) {
    const __m512i odd_mask = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    __m512 wide[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) wide[t] = Shifted(Weights(w + t * tile_bytes));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      __m512 even = _mm512_set1_ps(x[m * x_stride]);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) acc[t][m] = _mm512_fmadd_ps(wide[t], even, acc[t][m]);
    }
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t)
      wide[t] = _mm512_castsi512_ps(_mm512_and_si512(Weights(w + t * tile_bytes), odd_mask));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      __m512 odd = _mm512_set1_ps(x[m * x_stride + 1]);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) acc[t][m] = _mm512_fmadd_ps(wide[t], odd, acc[t][m]);
    }
  }
};

}  // namespace

void MultiplyBf16(const MultiplyArgs& args, int tile_begin, int tile_end) noexcept {
  BlockedGemm<Widened>::Run<uint16_t>(args, tile_begin, tile_end);
}
void MultiplyF32(const MultiplyArgs& args, int tile_begin, int tile_end) noexcept {
  BlockedGemm<Widened>::Run<float>(args, tile_begin, tile_end);
}

}  // namespace kt::avx512f
