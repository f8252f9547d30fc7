// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/read_row.h"

#include <emmintrin.h>  // SSE2: part of every x86-64

#include <algorithm>
#include <array>

namespace kt {
namespace {

// The numbers of all codes of up to 8 bits.
using Numbers = std::array<float, 256>;

Numbers NumbersOf(WeightCode code) {
  Numbers numbers;
  for (int i = 0; i < 256; ++i) {
    const uint8_t byte = static_cast<uint8_t>(i);
    numbers[i] = CodeValue(code, &byte);
  }
  return numbers;
}

const Numbers& TableOf(WeightCode code) {
  static const Numbers fp8 = NumbersOf(WeightCode::kFp8E4m3), int8 = NumbersOf(WeightCode::kInt8),
                       int4 = NumbersOf(WeightCode::kInt4), fp4 = NumbersOf(WeightCode::kFp4E2m1);
  return code == WeightCode::kFp8E4m3 ? fp8
         : code == WeightCode::kInt8  ? int8
         : code == WeightCode::kInt4  ? int4
                                      : fp4;
}

void WidenBf16(const uint8_t* codes, int k, float* out) {
  int c = 0;
  for (; c + 8 <= k; c += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 2 * c));
    const __m128i zero = _mm_setzero_si128();
    _mm_storeu_ps(out + c, _mm_castsi128_ps(_mm_unpacklo_epi16(zero, bits)));
    _mm_storeu_ps(out + c + 4, _mm_castsi128_ps(_mm_unpackhi_epi16(zero, bits)));
  }
  for (; c < k; ++c) out[c] = CodeValue(WeightCode::kBf16, codes + 2 * c);
}

void ReadNumbers(const MatrixView& v, int row, float* out) {
  const uint8_t* codes = v.CodeAt(row, 0);
  const int bits = CodeBits(v.code);
  const int64_t stride = v.code_column_stride != 0 ? v.code_column_stride : bits / 8;
  if (v.code == WeightCode::kBf16 && stride == 2) return WidenBf16(codes, v.k, out);
  if (bits > 8) {
    for (int64_t c = 0; c < v.k; ++c) out[c] = CodeValue(v.code, codes + c * stride);
    return;
  }
  const Numbers& numbers = TableOf(v.code);
  if (bits == 8) {
    for (int64_t c = 0; c < v.k; ++c) out[c] = numbers[codes[c * stride]];
    return;
  }
  const int64_t odd = v.first_column % 2;
  for (int64_t c = odd; c < v.k + odd; ++c)
    out[c - odd] = numbers[c % 2 == 0 ? codes[c / 2] & 15 : codes[c / 2] >> 4];
}

}  // namespace

void ReadRow(const MatrixView& v, int row, float* out) noexcept {
  ReadNumbers(v, row, out);
  if (v.scale == ScaleType::kNone) return;
  for (int c = 0; c < v.k;) {
    const int64_t left = v.block_columns - (int64_t{v.column_origin} + c) % v.block_columns;
    const int end = static_cast<int>(std::min<int64_t>(v.k, c + left));
    const float scale = ScaleValue(v.scale, v.ScaleAt(row, c));
    for (; c < end; ++c) out[c] *= scale;
  }
}

}  // namespace kt
