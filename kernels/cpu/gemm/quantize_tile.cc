// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/quantize_tile.h"

#include <emmintrin.h>  // SSE2: part of every x86-64

#include <cmath>

#include "kernels/cpu/gemm/quantize_row.h"
#include "kernels/cpu/gemm/read_row.h"

namespace kt {
namespace {

constexpr int kInt8Levels = 127, kInt4Levels = 112, kInt4Step = 16, kChunk = 16;

int64_t RoundUp(int k) { return (int64_t{k} + kChunk - 1) / kChunk * kChunk; }

__m128i LoadChunk(const int8_t* codes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
}

void StoreOffsetBytes(const int8_t* codes, uint8_t* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm_xor_si128(LoadChunk(codes), _mm_set1_epi8(-128)));
}

// -112 ... 112 -> -7 ... 7, ties away from zero, as offset nibbles, the even column low. Dividing
// by 16 with the remainder cut off rounds ties of negative numbers up, so these are raised by one
// less.
void StoreOffsetNibbles(const int8_t* codes, uint8_t* out) {
  const __m128i code = LoadChunk(codes), negative = _mm_cmplt_epi8(code, _mm_setzero_si128());
  const __m128i raised =
      _mm_add_epi8(_mm_add_epi8(code, negative), _mm_set1_epi8(static_cast<char>(8 * 16 + 8)));
  const __m128i nibbles = _mm_and_si128(_mm_srli_epi16(raised, 4), _mm_set1_epi8(15));
  const __m128i pairs = _mm_or_si128(nibbles, _mm_srli_epi16(nibbles, 4));
  const __m128i bytes = _mm_and_si128(pairs, _mm_set1_epi16(255));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(bytes, bytes));
}

}  // namespace

QuantizedTile::QuantizedTile(PackedCode code, int k)
    : code_(code),
      row_bytes_(code == PackedCode::kInt8 ? RoundUp(k) : RoundUp(k) / 2),
      values_(k),
      row_(RoundUp(k)),
      codes_(kTileRows * row_bytes_) {}

MatrixView QuantizedTile::Of(const MatrixView& view, int first_row, int count) {
  const bool is_int8 = code_ == PackedCode::kInt8;
  finite_ = true;
  for (int r = 0; r < count; ++r) {
    ReadRow(view, first_row + r, values_.data());
    const float scale =
        QuantizeRow(values_.data(), view.k, is_int8 ? kInt8Levels : kInt4Levels, row_.data());
    finite_ = finite_ && std::isfinite(scale);
    scales_[r] = is_int8 ? scale : kInt4Step * scale;
    uint8_t* codes = codes_.data() + r * row_bytes_;
    for (int64_t c = 0; c < view.k; c += kChunk) {
      if (is_int8) {
        StoreOffsetBytes(&row_[c], codes + c);
      } else {
        StoreOffsetNibbles(&row_[c], codes + c / 2);
      }
    }
  }
  return {.n = count,
          .k = view.k,
          .code = is_int8 ? WeightCode::kInt8 : WeightCode::kInt4,
          .scale = ScaleType::kF32,
          .block_columns = view.k,
          .codes = codes_.data(),
          .code_row_stride = row_bytes_,
          .scales = reinterpret_cast<const uint8_t*>(scales_),
          .scale_row_stride = sizeof(float)};
}

}  // namespace kt
