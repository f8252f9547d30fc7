// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/packed_bf16.h"

#include <emmintrin.h>  // SSE2: part of every x86-64

#include <algorithm>
#include <cstring>

namespace kt {
namespace {

constexpr int kPairElements = kTileRows * 2;  // one pair of k of 16 rows: 64 bytes

// Four rows x four pairs: transposes 32-bit pairs, so that a store holds one pair of k of four
// rows.
void TransposePairs(const bf16* w, int64_t row_stride, bf16* out) {
  __m128i row[4];
  for (int i = 0; i < 4; ++i)
    row[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w + i * row_stride));
  __m128i a = _mm_unpacklo_epi32(row[0], row[1]), b = _mm_unpacklo_epi32(row[2], row[3]);
  __m128i c = _mm_unpackhi_epi32(row[0], row[1]), d = _mm_unpackhi_epi32(row[2], row[3]);
  __m128i pair[4] = {_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b), _mm_unpacklo_epi64(c, d),
                     _mm_unpackhi_epi64(c, d)};
  for (int p = 0; p < 4; ++p)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + p * kPairElements), pair[p]);
}

}  // namespace

void PackBf16(const bf16* w, int64_t row_stride, int n, int k, bf16* packed) noexcept {
  for (int tile = 0; tile < Tiles(n); ++tile) {
    const bf16* source = w + int64_t{tile} * kTileRows * row_stride;
    bf16* out = packed + tile * TileElements(k);
    int rows = std::min(kTileRows, n - tile * kTileRows);
    int done = 0;  // columns written by whole blocks of 8
    if (rows == kTileRows) {
      for (; done + 8 <= k; done += 8) {
        for (int r = 0; r < kTileRows; r += 4) {
          TransposePairs(source + r * row_stride + done, row_stride,
                         out + done / 2 * kPairElements + r * 2);
        }
      }
    }
    for (int c = done; c < k; c += 2) {
      bf16* pair = out + c / 2 * kPairElements;
      std::fill(pair, pair + kPairElements, bf16{});
      for (int r = 0; r < rows; ++r)
        std::memcpy(pair + r * 2, source + r * row_stride + c, std::min(2, k - c) * sizeof(bf16));
    }
  }
}

namespace {

template <typename T, typename Convert>
void Unpack(const bf16* packed, int k, int row, T* out, Convert convert) {
  const bf16* source = packed + row / kTileRows * TileElements(k) + row % kTileRows * 2;
  for (int c = 0; c < k; ++c) out[c] = convert(source[c / 2 * kPairElements + c % 2]);
}

}  // namespace

void UnpackRow(const bf16* packed, int n, int k, int row, bf16* out) noexcept {
  Unpack(packed, k, row, out, [](bf16 x) { return x; });
}

void UnpackRow(const bf16* packed, int n, int k, int row, float* out) noexcept {
  Unpack(packed, k, row, out, [](bf16 x) { return ToFloat(x); });
}

}  // namespace kt
