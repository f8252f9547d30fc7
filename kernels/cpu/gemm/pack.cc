// SPDX-License-Identifier: Apache-2.0
#include <emmintrin.h>  // SSE2: part of every x86-64

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/cpu/gemm/packed_matrix.h"
#include "kernels/cpu/gemm/quantize_tile.h"

namespace kt {
namespace {

// A row's part of a unit is 4 bytes; this many bytes of a row are packed at a time.
constexpr int kUnitRowBytes = 4, kChunkBytes = 64, kChunkUnits = kChunkBytes / kUnitRowBytes;

bool IsNibbles(PackedCode code) {
  return code == PackedCode::kInt4 || code == PackedCode::kFp4E2m1;
}

// The last step from rows to units: how four rows' parts are ordered among themselves.
struct InRows {
  static __m128i Order(__m128i rows) { return rows; }
};
struct Fp8Pairs {  // a pair of columns of all four rows, then the other
  static __m128i Order(__m128i rows) {
    constexpr int kOuterInner = 0xd8;  // 0 2 1 3
    rows = _mm_shufflehi_epi16(_mm_shufflelo_epi16(rows, kOuterInner), kOuterInner);
    return _mm_shuffle_epi32(rows, kOuterInner);
  }
};
struct EvenNibblesFirst {
  static __m128i Order(__m128i rows) {
    const __m128i nibble = _mm_set1_epi8(15), byte = _mm_set1_epi16(255);
    const auto joined = [&](__m128i nibbles) {  // one to a byte -> two to the lower byte of 16 bits
      return _mm_and_si128(_mm_or_si128(nibbles, _mm_srli_epi16(nibbles, 4)), byte);
    };
    const __m128i even = joined(_mm_and_si128(rows, nibble));
    const __m128i odd = joined(_mm_and_si128(_mm_srli_epi16(rows, 4), nibble));
    const __m128i both = _mm_packus_epi16(even, odd);
    return _mm_unpacklo_epi16(both, _mm_srli_si128(both, 8));
  }
};

// Rows 4 q ... 4 q + 3 of 4 units: a transpose of 32-bit words.
template <typename Form>
void PackFourUnits(const uint8_t* rows, int64_t row_stride, uint8_t* out) {
  __m128i a[4];
  for (int i = 0; i < 4; ++i)
    a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + i * row_stride));
  const __m128i low01 = _mm_unpacklo_epi32(a[0], a[1]), low23 = _mm_unpacklo_epi32(a[2], a[3]);
  const __m128i high01 = _mm_unpackhi_epi32(a[0], a[1]), high23 = _mm_unpackhi_epi32(a[2], a[3]);
  const __m128i units[4] = {_mm_unpacklo_epi64(low01, low23), _mm_unpackhi_epi64(low01, low23),
                            _mm_unpacklo_epi64(high01, high23), _mm_unpackhi_epi64(high01, high23)};
  for (int i = 0; i < 4; ++i)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * kUnitBytes), Form::Order(units[i]));
}

// 16 rows x kChunkBytes -> kChunkUnits units.
template <typename Form>
void PackChunk(const uint8_t* rows, int64_t row_stride, uint8_t* out) {
  for (int q = 0; q < kTileRows / 4; ++q) {
    for (int i = 0; i < kChunkUnits; i += 4) {
      PackFourUnits<Form>(rows + 4 * q * row_stride + i * kUnitRowBytes, row_stride,
                          out + i * kUnitBytes + q * 16);
    }
  }
}

using ChunkFn = void (*)(const uint8_t* rows, int64_t row_stride, uint8_t* out);
ChunkFn ChunkFnOf(PackedCode code) {
  if (IsNibbles(code)) return &PackChunk<EvenNibblesFirst>;
  return code == PackedCode::kFp8E4m3 ? &PackChunk<Fp8Pairs> : &PackChunk<InRows>;
}

uint8_t ZeroCode(PackedCode code) {
  return code == PackedCode::kInt8 ? 0x80 : code == PackedCode::kInt4 ? 0x88 : 0;
}

// A tile of a view, read as rows of codes: 16 rows of `row_bytes` bytes, of which `count` exist.
class TileRows {
 public:
  TileRows(const MatrixView& view, PackedCode code, bool second_plane, int first_row, int count)
      : view_(view),
        code_(code),
        second_plane_(second_plane),
        first_row_(first_row),
        count_(count),
        bits_(kUnitRowBytes * 8 / UnitColumns(code)),
        row_bytes_((int64_t{view.k} * bits_ + 7) / 8) {
    const bool contiguous =
        view.code_column_stride == 0 || view.code_column_stride * 8 == CodeBits(view.code);
    const bool plain = view.code == WeightCode::kBf16 && view.scale == ScaleType::kNone;
    copies_ = contiguous && code != PackedCode::kBf16x2 && (code != PackedCode::kBf16 || plain);
  }
  int64_t row_bytes() const { return row_bytes_; }

  // Rows to pack from byte `at` on: in place where a whole chunk is there, else made in `buffer`
  // [16][kChunkBytes].
  const uint8_t* Chunk(int64_t at, uint8_t* buffer, int64_t& row_stride) const {
    const int bytes = static_cast<int>(std::min<int64_t>(kChunkBytes, row_bytes_ - at));
    const uint8_t* rows = view_.CodeAt(first_row_, 0) + at;
    if (copies_ && bytes == kChunkBytes && count_ == kTileRows && !EndsInside(at + bytes)) {
      row_stride = view_.code_row_stride;
      return rows;
    }
    row_stride = kChunkBytes;
    std::memset(buffer, ZeroCode(code_), kTileRows * kChunkBytes);
    for (int r = 0; r < count_; ++r) {
      uint8_t* out = buffer + r * kChunkBytes;
      if (copies_) {
        std::memcpy(out, rows + r * view_.code_row_stride, bytes);
        // The high nibble of the last byte is not ours.
        if (EndsInside(at + bytes))
          out[bytes - 1] = static_cast<uint8_t>((out[bytes - 1] & 0x0f) | (ZeroCode(code_) & 0xf0));
      } else {
        MakeCodes(first_row_ + r, at, bytes, out);
      }
    }
    return buffer;
  }

 private:
  bool EndsInside(int64_t end) const { return bits_ == 4 && view_.k % 2 != 0 && end == row_bytes_; }

  void MakeCodes(int row, int64_t at, int bytes, uint8_t* out) const {
    const int code_bytes = bits_ / 8;  // 4-bit codes are always copied
    for (int i = 0; i < bytes; i += code_bytes, out += code_bytes) {
      const int column = static_cast<int>((at + i) / code_bytes);
      if (code_bytes == 1) {
        *out = *view_.CodeAt(row, column);
        continue;
      }
      const float value = view_.At(row, column);
      bf16 number = ToBf16(value);
      if (second_plane_) {
        const float first = ToFloat(number);
        number = std::isfinite(first) ? ToBf16(value - first) : bf16{};
      }
      std::memcpy(out, &number, sizeof number);
    }
  }

  const MatrixView& view_;
  const PackedCode code_;
  const bool second_plane_;
  const int first_row_, count_, bits_;
  const int64_t row_bytes_;
  bool copies_;
};

void PackPlane(const TileRows& rows, PackedCode code, uint8_t* out) {
  const ChunkFn pack = ChunkFnOf(code);
  alignas(64) uint8_t buffer[kTileRows * kChunkBytes], units[kChunkUnits * kUnitBytes];
  for (int64_t at = 0; at < rows.row_bytes(); at += kChunkBytes) {
    const int64_t left = (rows.row_bytes() - at + kUnitRowBytes - 1) / kUnitRowBytes;
    int64_t row_stride;
    const uint8_t* chunk = rows.Chunk(at, buffer, row_stride);
    pack(chunk, row_stride, left < kChunkUnits ? units : out);
    if (left < kChunkUnits) std::memcpy(out, units, left * kUnitBytes);
    out += kChunkUnits * kUnitBytes;
  }
}

bool HasFp8Nan(const uint8_t* units, size_t bytes) {
  const __m128i magnitude = _mm_set1_epi8(0x7f);
  __m128i nan = _mm_setzero_si128();
  for (size_t i = 0; i < bytes; i += 16) {
    const __m128i codes = _mm_load_si128(reinterpret_cast<const __m128i*>(units + i));
    nan = _mm_or_si128(nan, _mm_cmpeq_epi8(_mm_and_si128(codes, magnitude), magnitude));
  }
  return _mm_movemask_epi8(nan) != 0;
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

void PackTile(const MatrixView& view, const PackedFormat& format, int first_row, int count,
              uint8_t* out) {
  const size_t tile_bytes = PackedTileBytes(view.k, format);
  const size_t code_bytes = PackedCodeBytes(view.k, format.code);
  const size_t scale_bytes =
      size_t(PackedGroups(view.k, format)) * format.lanes * ScaleBytes(format.scale);
  PackPlane({view, format.code, false, first_row, count}, format.code, out);
  if (format.code == PackedCode::kBf16x2)
    PackPlane({view, format.code, true, first_row, count}, format.code, out + code_bytes / 2);
  if (format.lanes != 0) PackScales(view, format, first_row, count, out + code_bytes);
  std::memset(out + code_bytes + scale_bytes, 0, tile_bytes - code_bytes - scale_bytes);
}

}  // namespace

bool Pack(const MatrixView& view, const PackedFormat& format, int tile_begin, int tile_end,
          uint8_t* packed) noexcept {
  bool numbers = true;
  const size_t tile_bytes = PackedTileBytes(view.k, format);
  std::optional<QuantizedTile> quantized;
  if (format.int8_x) quantized.emplace(format.code, view.k);
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    const int first_row = tile * kTileRows, count = std::min(kTileRows, view.n - first_row);
    uint8_t* out = packed + tile * tile_bytes;
    if (quantized) {
      PackTile(quantized->Of(view, first_row, count), format, 0, count, out);
      numbers = numbers && quantized->finite();
    } else {
      PackTile(view, format, first_row, count, out);
      numbers = numbers && (format.code != PackedCode::kFp8E4m3 ||
                            !HasFp8Nan(out, PackedCodeBytes(view.k, format.code)));
    }
  }
  return numbers;
}

}  // namespace kt
