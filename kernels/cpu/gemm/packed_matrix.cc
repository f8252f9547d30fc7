// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/packed_matrix.h"

#include <algorithm>

namespace kt {
namespace {

constexpr int64_t kTileAlignment = 64;

size_t Pairs(int k) { return (size_t(k) + 1) / 2; }

bool OneGroup(const MatrixView& v) { return v.block_columns - v.column_origin >= v.k; }

bool KeepsItsCodes(const MatrixView& v) {
  const int bits = CodeBits(v.code);
  if (bits == 4 && (v.first_column % 2 != 0 || v.code_column_stride != 0)) return false;
  const bool even_groups = v.block_columns % 2 == 0 && v.column_origin % 2 == 0;
  return bits <= 8 && (v.scale == ScaleType::kNone || even_groups || OneGroup(v));
}

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
  const int lane = row % kTileRows;
  const uint8_t* tile = m.data + row / kTileRows * PackedTileBytes(m.k, f);
  if (f.code == PackedCode::kBf16 || f.code == PackedCode::kBf16x2) {
    const bf16* high = reinterpret_cast<const bf16*>(tile) + 2 * lane;
    const bf16* low = high + Pairs(m.k) * 2 * kTileRows;
    for (int c = 0; c < m.k; ++c) {
      const int at = c / 2 * 2 * kTileRows + c % 2;
      const float rest = f.code == PackedCode::kBf16 ? 0.0f : ToFloat(low[at]);
      out[c] = Convert(ToFloat(high[at]) + rest, Out{});
    }
    return;
  }
  const WeightCode code = WeightCodeOf(f.code);
  const uint8_t* scales = tile + Pairs(m.k) * PackedPairBytes(f.code);
  for (int c = 0; c < m.k; ++c) {
    const uint8_t* at = CodeBits(code) == 4 ? tile + c / 2 * kTileRows + lane
                                            : tile + (c / 2 * kTileRows + lane) * 2 + c % 2;
    float value = CodeValue(code, at, c % 2 != 0);
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

size_t PackedPairBytes(PackedCode code) {
  constexpr size_t kBytes[kPackedCodes] = {64, 128, 32, 32, 16, 16};
  return kBytes[static_cast<int>(code)];
}

int PackedGroups(int k, const PackedFormat& f) {
  return f.lanes == 0 ? 0 : static_cast<int>((int64_t{f.origin} + k + f.group - 1) / f.group);
}

size_t PackedTileBytes(int k, const PackedFormat& f) {
  const size_t bytes = Pairs(k) * PackedPairBytes(f.code) +
                       size_t(PackedGroups(k, f)) * f.lanes * ScaleBytes(f.scale);
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
