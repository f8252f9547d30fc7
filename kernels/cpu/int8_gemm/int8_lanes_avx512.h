// SPDX-License-Identifier: Apache-2.0
// What BlockedInt8Gemm needs of a zmm register of sums, and nibbles in such registers; included by
// AVX-512 files only. File, a struct of such a file's anonymous namespace, makes every
// instantiation local to it.
#ifndef KT_KERNELS_CPU_INT8_GEMM_INT8_LANES_AVX512_H_
#define KT_KERNELS_CPU_INT8_GEMM_INT8_LANES_AVX512_H_

#include <immintrin.h>

#include <cstdint>

namespace kt {

// kOffset: what unsigned weights are too large by.
template <typename File, int kOffset>
struct Int8Lanes512 {
  using Acc = __m512i;
  static Acc Start(int32_t x_sum) { return _mm512_set1_epi32(-kOffset * x_sum); }
  static void Save(int32_t* sums, Acc acc) { _mm512_storeu_si512(sums, acc); }
  static void Scale(const int32_t* sums, const char* w_scales, float x_scale, float* y) {
    const __m512 w = _mm512_castsi512_ps(_mm512_loadu_si512(w_scales));
    // gcc 12 takes the unmasked conversion for a use of an uninitialised value.
    const __m512 sum = _mm512_maskz_cvtepi32_ps(0xffff, _mm512_loadu_si512(sums));
    _mm512_storeu_ps(y, _mm512_mul_ps(_mm512_mul_ps(w, _mm512_set1_ps(x_scale)), sum));
  }

  // The four bytes at x in all lanes.
  static __m512i FourOf(const int8_t* x) {
    int bytes;
    __builtin_memcpy(&bytes, x, sizeof bytes);
    return _mm512_set1_epi32(bytes);
  }

  // A unit of 4-bit codes of each of T tiles as bytes.
  template <int T>
  struct Nibbles {
    __m512i low[T], high[T];
    Nibbles(const char* w, int64_t tile_bytes) {
      const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        const __m512i codes = _mm512_loadu_si512(w + t * tile_bytes);
        low[t] = _mm512_and_si512(codes, mask);
        high[t] = _mm512_and_si512(_mm512_srli_epi16(codes, 4), mask);
      }
    }
  };
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_INT8_GEMM_INT8_LANES_AVX512_H_
