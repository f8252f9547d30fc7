// SPDX-License-Identifier: Apache-2.0
#include <emmintrin.h>  // SSE2: part of every x86-64

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/gemm/packed_matrix.h"

namespace kt {
namespace {

template <int kUnit>
__m128i Low(__m128i a, __m128i b) {
  return kUnit == 1   ? _mm_unpacklo_epi8(a, b)
         : kUnit == 2 ? _mm_unpacklo_epi16(a, b)
                      : _mm_unpacklo_epi32(a, b);
}
template <int kUnit>
__m128i High(__m128i a, __m128i b) {
  return kUnit == 1   ? _mm_unpackhi_epi8(a, b)
         : kUnit == 2 ? _mm_unpackhi_epi16(a, b)
                      : _mm_unpackhi_epi32(a, b);
}

// A unit is what one row has of a pair of columns: kUnit bytes. Transposes 16 / kUnit rows x 16 /
// kUnit units: in each round the first half of the registers is interleaved with the second.
template <int kUnit>
void TransposeUnits(const uint8_t* rows, int64_t row_stride, uint8_t* out) {
  constexpr int kRows = 16 / kUnit;
  __m128i a[kRows], b[kRows];
  for (int i = 0; i < kRows; ++i)
    a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + i * row_stride));
  for (int round = 1; round < kRows; round *= 2) {
    for (int i = 0; i < kRows / 2; ++i) {
      b[2 * i] = Low<kUnit>(a[i], a[i + kRows / 2]);
      b[2 * i + 1] = High<kUnit>(a[i], a[i + kRows / 2]);
    }
    std::copy(b, b + kRows, a);
  }
  for (int i = 0; i < kRows; ++i)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * kTileRows * kUnit), a[i]);
}

// A tile of `count` rows that are contiguous runs of row_bytes bytes. What the last pair or the
// tile lacks becomes `zero`.
template <int kUnit>
void PackUnits(const uint8_t* rows, int64_t row_stride, int count, int64_t row_bytes, uint8_t zero,
               uint8_t* out) {
  int64_t done = 0;  // bytes of each row
  if (count == kTileRows) {
    for (; done + 16 <= row_bytes; done += 16) {
      for (int r = 0; r < kTileRows; r += 16 / kUnit) {
        TransposeUnits<kUnit>(rows + r * row_stride + done, row_stride,
                              out + done * kTileRows + r * kUnit);
      }
    }
  }
  for (; done < row_bytes; done += kUnit) {
    uint8_t* pair = out + done * kTileRows;
    std::memset(pair, zero, kTileRows * kUnit);
    for (int r = 0; r < count; ++r) {
      std::memcpy(pair + r * kUnit, rows + r * row_stride + done,
                  std::min<int64_t>(kUnit, row_bytes - done));
    }
  }
}

uint8_t ZeroCode(PackedCode code) {
  return code == PackedCode::kInt8 ? 0x80 : code == PackedCode::kInt4 ? 0x88 : 0;
}

// Codes of any view, one by one.
void PackEach(const MatrixView& v, PackedCode code, int first_row, int count, uint8_t* out) {
  const size_t pairs = (size_t(v.k) + 1) / 2;
  const bool keeps_codes = code != PackedCode::kBf16 && code != PackedCode::kBf16x2;  // of 8 bits
  std::memset(out, ZeroCode(code), pairs * PackedPairBytes(code));
  for (int c = 0; c < v.k; ++c) {
    for (int r = 0; r < count; ++r) {
      const size_t at = (size_t(c) / 2 * kTileRows + r) * 2 + c % 2;
      if (keeps_codes) {
        out[at] = *v.CodeAt(first_row + r, c);
        continue;
      }
      const float value = v.At(first_row + r, c);
      const bf16 high = ToBf16(value);
      std::memcpy(out + at * sizeof(bf16), &high, sizeof high);
      if (code != PackedCode::kBf16x2) continue;
      const bf16 low = std::isfinite(ToFloat(high)) ? ToBf16(value - ToFloat(high)) : bf16{};
      std::memcpy(out + (pairs * 2 * kTileRows + at) * sizeof(bf16), &low, sizeof low);
    }
  }
}

void PackCodes(const MatrixView& v, PackedCode code, int first_row, int count, uint8_t* out) {
  const int bits = CodeBits(v.code);
  const bool contiguous = v.code_column_stride == 0 || v.code_column_stride * 8 == bits;
  const uint8_t* rows = v.CodeAt(first_row, 0);
  switch (contiguous ? code : PackedCode::kBf16x2) {
    case PackedCode::kBf16:
      if (v.code != WeightCode::kBf16 || v.scale != ScaleType::kNone) break;
      return PackUnits<4>(rows, v.code_row_stride, count, int64_t{2} * v.k, 0, out);
    case PackedCode::kFp8E4m3:
    case PackedCode::kInt8:
      return PackUnits<2>(rows, v.code_row_stride, count, v.k, ZeroCode(code), out);
    case PackedCode::kInt4:
    case PackedCode::kFp4E2m1:
      PackUnits<1>(rows, v.code_row_stride, count, (int64_t{v.k} + 1) / 2, ZeroCode(code), out);
      if (v.k % 2 != 0) {  // the high nibbles of the last bytes are not ours
        uint8_t* last = out + size_t(v.k) / 2 * kTileRows;
        for (int r = 0; r < count; ++r)
          last[r] = static_cast<uint8_t>((last[r] & 0x0f) | (ZeroCode(code) & 0xf0));
      }
      return;
    case PackedCode::kBf16x2:
      break;
  }
  PackEach(v, code, first_row, count, out);
}

template <typename T>
void CopyScales(const uint8_t* scales, int64_t stride, int groups, int lanes, uint8_t* out) {
  for (int g = 0; g < groups; ++g)
    std::memcpy(out + size_t(g) * lanes * sizeof(T), scales + g * stride, sizeof(T));
}

void PackScales(const MatrixView& v, const PackedFormat& f, int first_row, int count,
                uint8_t* out) {
  const int groups = PackedGroups(v.k, f), bytes = ScaleBytes(f.scale);
  std::memset(out, 0, size_t(groups) * f.lanes * bytes);
  for (int lane = 0; lane < std::min(count, f.lanes); ++lane) {
    const uint8_t* scales = v.ScaleAt(first_row + lane, 0);
    uint8_t* to = out + lane * bytes;
    if (v.scale == ScaleType::kF16) {
      for (int g = 0; g < groups; ++g) {
        const float scale = ScaleValue(v.scale, scales + g * v.scale_column_stride);
        std::memcpy(to + size_t(g) * f.lanes * bytes, &scale, sizeof scale);
      }
    } else if (bytes == 4) {
      CopyScales<uint32_t>(scales, v.scale_column_stride, groups, f.lanes, to);
    } else if (bytes == 2) {
      CopyScales<uint16_t>(scales, v.scale_column_stride, groups, f.lanes, to);
    } else {
      CopyScales<uint8_t>(scales, v.scale_column_stride, groups, f.lanes, to);
    }
  }
}

}  // namespace

void Pack(const MatrixView& view, const PackedFormat& format, int tile_begin, int tile_end,
          uint8_t* packed) noexcept {
  const size_t tile_bytes = PackedTileBytes(view.k, format);
  const size_t code_bytes = (size_t(view.k) + 1) / 2 * PackedPairBytes(format.code);
  const size_t scale_bytes =
      size_t(PackedGroups(view.k, format)) * format.lanes * ScaleBytes(format.scale);
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    const int first_row = tile * kTileRows, count = std::min(kTileRows, view.n - first_row);
    uint8_t* out = packed + tile * tile_bytes;
    PackCodes(view, format.code, first_row, count, out);
    if (format.lanes != 0) PackScales(view, format, first_row, count, out + code_bytes);
    std::memset(out + code_bytes + scale_bytes, 0, tile_bytes - code_bytes - scale_bytes);
  }
}

}  // namespace kt
