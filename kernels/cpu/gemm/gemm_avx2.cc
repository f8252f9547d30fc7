// SPDX-License-Identifier: Apache-2.0
// AVX2 + FMA. A tile's 16 lanes are two ymm registers. bf16 weights widen in registers: the even
// element of a pair is the upper half of the lane after a shift by 16, the odd one the lane with
// its lower half cleared. x waits in the panel as fp32. Registers (16), at 6 tokens x 1 tile: 12
// accumulators, 2 widened weights, 1 broadcast x, 1 mask.
#include <immintrin.h>

#include "kernels/cpu/gemm/gemm_blocked.h"
#include "kernels/cpu/gemm/gemm_isa.h"

namespace kt::avx2 {
namespace {

struct Widened {
  using Element = float;
  struct Acc {
    __m256 low, high;
  };
  static constexpr int kTokensMax = 6;
  static constexpr int ReuseTiles(int tokens) { return tokens > 2 ? 1 : 2; }
  static constexpr int StreamTiles(int tokens) { return tokens > 2 ? 1 : tokens > 1 ? 2 : 4; }

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

  static Acc Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Acc Load(const float* y) { return {_mm256_loadu_ps(y), _mm256_loadu_ps(y + 8)}; }
  static void Store(float* y, Acc a) {
    _mm256_storeu_ps(y, a.low);
    _mm256_storeu_ps(y + 8, a.high);
  }
  static Acc Fold(Acc scales, Acc a, Acc y) {
    return {_mm256_fmadd_ps(scales.low, a.low, y.low),
            _mm256_fmadd_ps(scales.high, a.high, y.high)};
  }
  static __m256i Weights(const char* w) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
  }

  template <int T, int M>
  static void Step(Acc (&acc)[T][M], const char* w, int64_t tile_bytes, const float* x,
                   int x_stride) {
    const __m256i odd_mask = _mm256_set1_epi32(static_cast<int>(0xffff0000));
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      const char* tile = w + t * tile_bytes;
      __m256 low = _mm256_castsi256_ps(_mm256_slli_epi32(Weights(tile), 16));
      __m256 high = _mm256_castsi256_ps(_mm256_slli_epi32(Weights(tile + 32), 16));
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        __m256 even = _mm256_set1_ps(x[m * x_stride]);
        acc[t][m].low = _mm256_fmadd_ps(low, even, acc[t][m].low);
        acc[t][m].high = _mm256_fmadd_ps(high, even, acc[t][m].high);
      }
      low = _mm256_castsi256_ps(_mm256_and_si256(Weights(tile), odd_mask));
      high = _mm256_castsi256_ps(_mm256_and_si256(Weights(tile + 32), odd_mask));
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        __m256 odd = _mm256_set1_ps(x[m * x_stride + 1]);
        acc[t][m].low = _mm256_fmadd_ps(low, odd, acc[t][m].low);
        acc[t][m].high = _mm256_fmadd_ps(high, odd, acc[t][m].high);
      }
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

}  // namespace kt::avx2
