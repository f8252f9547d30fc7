// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/packed_matrix.h"

#include <algorithm>

namespace kt {
namespace {

constexpr int64_t kTileAlignment = 64;

bool OneGroup(const MatrixView& v) { return v.block_columns - v.column_origin >= v.k; }

PackedCode CodeOf(WeightCode code) {
  switch (code) {
    case WeightCode::kFp8E4m3:
      return PackedCode::kFp8E4m3;
    case WeightCode::kInt8:
      return PackedCode::kInt8;
    case WeightCode::kInt4:
      return PackedCode::kInt4;
    case WeightCode::kFp4E2m1:
      return PackedCode::kFp4E2m1;
    case WeightCode::kBf16:
    case WeightCode::kF16:
    case WeightCode::kF32:
      break;
  }
  return PackedCode::kBf16;
}

bool KeepsItsCodes(const MatrixView& v) {
  const int bits = CodeBits(v.code), unit = UnitColumns(CodeOf(v.code));
  if (bits == 4 && (v.first_column % 2 != 0 || v.code_column_stride != 0)) return false;
  const bool whole_units = v.block_columns % unit == 0 && v.column_origin % unit == 0;
  return bits <= 8 && (v.scale == ScaleType::kNone || whole_units || OneGroup(v));
}

WeightCode WeightCodeOf(PackedCode code) {
  switch (code) {
    case PackedCode::kFp8E4m3:
      return WeightCode::kFp8E4m3;
    case PackedCode::kInt8:
      return WeightCode::kInt8;
    case PackedCode::kInt4:
      return WeightCode::kInt4;
    case PackedCode::kFp4E2m1:
      return WeightCode::kFp4E2m1;
    case PackedCode::kBf16:
    case PackedCode::kBf16x2:
      break;
  }
  return WeightCode::kBf16;
}

bf16 Convert(float x, bf16) { return ToBf16(x); }
float Convert(float x, float) { return x; }

template <typename Out>
void Unpack(const PackedMatrix& m, int row, Out* out) {
  const PackedFormat& f = m.format;
  const int lane = row % kTileRows, unit = UnitColumns(f.code);
  const uint8_t* tile = m.data + row / kTileRows * PackedTileBytes(m.k, f);
  const uint8_t* scales = tile + PackedCodeBytes(m.k, f.code);
  const uint8_t* second = tile + PackedCodeBytes(m.k, f.code) / 2;
  const WeightCode code = WeightCodeOf(f.code);
  for (int c = 0; c < m.k; ++c) {
    const auto [byte, high] = PlaceInUnit(f.code, lane, c % unit);
    const int at = c / unit * kUnitBytes + byte;
    float value = CodeValue(code, tile + at, high);
    if (f.code == PackedCode::kBf16x2) value += CodeValue(code, second + at, false);
    if (f.lanes != 0) {
      const int64_t group = (int64_t{f.origin} + c) / f.group;
      value *= ScaleValue(
          f.scale, scales + (group * f.lanes + (f.lanes == 1 ? 0 : lane)) * ScaleBytes(f.scale));
    }
    out[c] = Convert(value, Out{});
  }
}

}  // namespace

PackedFormat PackedFormatOf(const MatrixView& v, bool exact) {
  PackedFormat f;
  if (!KeepsItsCodes(v)) {
    const bool is_bf16 = v.code == WeightCode::kBf16 && v.scale == ScaleType::kNone;
    f.code = exact && !is_bf16 ? PackedCode::kBf16x2 : PackedCode::kBf16;
    return f;
  }
  f.code = CodeOf(v.code);
  if (v.scale == ScaleType::kNone) return f;
  f.scale = v.scale == ScaleType::kF16 ? ScaleType::kF32 : v.scale;
  const bool cuts_tiles = v.block_rows % kTileRows != 0 || v.row_origin % kTileRows != 0;
  f.lanes = cuts_tiles && v.block_rows - v.row_origin < v.n ? kTileRows : 1;
  f.group = OneGroup(v) ? v.k : v.block_columns;
  f.origin = OneGroup(v) ? 0 : v.column_origin;
  return f;
}

PackedFormat Int8XFormat(PackedCode code, int k) {
  return {.code = code, .scale = ScaleType::kF32, .lanes = kTileRows, .group = k, .int8_x = true};
}

int UnitColumns(PackedCode code) {
  constexpr int kColumns[kPackedCodes] = {2, 2, 4, 4, 8, 8};
  return kColumns[static_cast<int>(code)];
}

UnitPlace PlaceInUnit(PackedCode code, int row, int column) {
  switch (code) {
    case PackedCode::kBf16:
    case PackedCode::kBf16x2:
      return {row * 4 + column * 2, false};
    case PackedCode::kFp8E4m3:
      return {row / 4 * 16 + column / 2 * 8 + row % 4 * 2 + column % 2, false};
    case PackedCode::kInt8:
      return {row * 4 + column, false};
    case PackedCode::kInt4:
    case PackedCode::kFp4E2m1:
      break;
  }
  return {row * 4 + column % 2 * 2 + column / 4, column / 2 % 2 != 0};
}

size_t PackedCodeBytes(int k, PackedCode code) {
  const size_t units = (size_t(k) + UnitColumns(code) - 1) / UnitColumns(code);
  return units * kUnitBytes * (code == PackedCode::kBf16x2 ? 2 : 1);
}

int PackedGroups(int k, const PackedFormat& f) {
  return f.lanes == 0 ? 0 : static_cast<int>((int64_t{f.origin} + k + f.group - 1) / f.group);
}

size_t PackedTileBytes(int k, const PackedFormat& f) {
  const size_t bytes =
      PackedCodeBytes(k, f.code) + size_t(PackedGroups(k, f)) * f.lanes * ScaleBytes(f.scale);
  return (bytes + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
}

size_t PackedBytes(int n, int k, const PackedFormat& f) { return Tiles(n) * PackedTileBytes(k, f); }

void UnpackRow(const PackedMatrix& matrix, int row, float* out) noexcept {
  Unpack(matrix, row, out);
}
void UnpackRow(const PackedMatrix& matrix, int row, bf16* out) noexcept {
  Unpack(matrix, row, out);
}

}  // namespace kt
