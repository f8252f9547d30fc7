// SPDX-License-Identifier: Apache-2.0
#include <emmintrin.h>  // SSE2: part of every x86-64

#include <cstring>

#include "kernels/cpu/gemm/quantize_row.h"
#include "kernels/cpu/int8_gemm/int8_gemm.h"

namespace kt {
namespace {

constexpr int kRowAlignment = 64, kChunk = 16, kLevels = 127;

__m128i* ChunkAt(int8_t* codes) { return reinterpret_cast<__m128i*>(codes); }

// Sum of `bytes` codes, a multiple of 16.
int32_t Sum(int8_t* codes, int64_t bytes) {
  __m128i sum = _mm_setzero_si128();
  for (int64_t i = 0; i < bytes; i += kChunk) {
    const __m128i offset = _mm_xor_si128(_mm_loadu_si128(ChunkAt(codes + i)), _mm_set1_epi8(-128));
    sum = _mm_add_epi64(sum, _mm_sad_epu8(offset, _mm_setzero_si128()));
  }
  int64_t halves[2];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(halves), sum);
  return static_cast<int32_t>(halves[0] + halves[1] - 128 * bytes);
}

// Columns 0 4 1 5 2 6 3 7 of every 8: those of the lower nibbles of a row's part of a unit, then
// those of the upper ones.
void OrderForInt4(int8_t* codes, int64_t bytes) {
  constexpr int kOuterInner = 0xd8;  // 0 2 1 3
  for (int64_t i = 0; i < bytes; i += kChunk) {
    const __m128i halves = _mm_shuffle_epi32(_mm_loadu_si128(ChunkAt(codes + i)), kOuterInner);
    _mm_storeu_si128(ChunkAt(codes + i), _mm_unpacklo_epi8(halves, _mm_srli_si128(halves, 8)));
  }
}

}  // namespace

int64_t Int8RowBytes(int k) {
  return (int64_t{k} + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
}

void QuantizeRows(PackedCode code, bool x_is_bf16, const void* x, int64_t x_stride, int rows, int k,
                  const Int8Rows& out) noexcept {
  const int64_t bytes = Int8RowBytes(k);
  for (int64_t r = 0; r < rows; ++r) {
    int8_t* codes = out.codes + r * out.stride;
    out.scales[r] =
        x_is_bf16 ? QuantizeRow(static_cast<const bf16*>(x) + r * x_stride, k, kLevels, codes)
                  : QuantizeRow(static_cast<const float*>(x) + r * x_stride, k, kLevels, codes);
    std::memset(codes + k, 0, bytes - k);
    out.sums[r] = Sum(codes, bytes);
    if (code == PackedCode::kInt4) OrderForInt4(codes, bytes);
  }
}

}  // namespace kt
