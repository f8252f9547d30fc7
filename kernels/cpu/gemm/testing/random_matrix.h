// SPDX-License-Identifier: Apache-2.0
// Random checkpoint matrices of every format, as slices of larger ones.
#ifndef KT_KERNELS_CPU_GEMM_TESTING_RANDOM_MATRIX_H_
#define KT_KERNELS_CPU_GEMM_TESTING_RANDOM_MATRIX_H_

#include <algorithm>
#include <cstring>
#include <ostream>
#include <random>
#include <vector>

#include "common/base/bf16.h"
#include "common/base/weight_matrix.h"
#include "kernels/cpu/gemm/packed_matrix.h"

namespace kt {

enum class Storage { kRows, kInterleaved, kTransposed };

struct MatrixSpec {
  const char* name;
  WeightCode code;
  ScaleType scale = ScaleType::kNone;
  int block_rows = 0;     // 0: all
  int block_columns = 0;  // 0: all
  Storage storage = Storage::kRows;
  int column_unit = 2;  // where columns may be cut
};
inline std::ostream& operator<<(std::ostream& out, const MatrixSpec& s) { return out << s.name; }

inline constexpr MatrixSpec kMatrixSpecs[] = {
    {"bf16", WeightCode::kBf16},
    {"bf16_interleaved", WeightCode::kBf16, ScaleType::kNone, 0, 0, Storage::kInterleaved, 1},
    {"bf16_transposed", WeightCode::kBf16, ScaleType::kNone, 0, 0, Storage::kTransposed, 1},
    {"bf16_scaled", WeightCode::kBf16, ScaleType::kF32, 1, 0},
    {"f16", WeightCode::kF16, ScaleType::kNone, 0, 0, Storage::kRows, 1},
    {"f32", WeightCode::kF32, ScaleType::kNone, 0, 0, Storage::kRows, 1},
    {"fp8_unscaled", WeightCode::kFp8E4m3, ScaleType::kNone, 0, 0, Storage::kRows, 1},
    {"fp8_block", WeightCode::kFp8E4m3, ScaleType::kF32, 128, 128},
    {"fp8_block_cut_at_16", WeightCode::kFp8E4m3, ScaleType::kF32, 128, 128, Storage::kRows, 16},
    {"fp8_block_anywhere", WeightCode::kFp8E4m3, ScaleType::kBf16, 40, 48, Storage::kRows, 1},
    {"fp8_block_transposed", WeightCode::kFp8E4m3, ScaleType::kF32, 128, 128, Storage::kTransposed},
    {"fp8_channel", WeightCode::kFp8E4m3, ScaleType::kBf16, 1, 0, Storage::kRows, 1},
    {"fp8_channel_transposed", WeightCode::kFp8E4m3, ScaleType::kF32, 0, 1, Storage::kTransposed},
    {"fp8_tensor", WeightCode::kFp8E4m3, ScaleType::kF32, 0, 0},
    {"mxfp8", WeightCode::kFp8E4m3, ScaleType::kE8m0, 1, 32},
    {"int8_channel", WeightCode::kInt8, ScaleType::kF32, 1, 0, Storage::kRows, 1},
    {"int8_g64", WeightCode::kInt8, ScaleType::kBf16, 1, 64},
    {"int8_unscaled", WeightCode::kInt8},
    {"int4_g32", WeightCode::kInt4, ScaleType::kBf16, 1, 32},
    {"int4_g32_interleaved", WeightCode::kInt4, ScaleType::kBf16, 1, 32, Storage::kInterleaved},
    {"int4_g64", WeightCode::kInt4, ScaleType::kF16, 1, 64},
    {"int4_g128", WeightCode::kInt4, ScaleType::kF32, 1, 128},
    {"int4_channel", WeightCode::kInt4, ScaleType::kBf16, 1, 0},
    {"int4_g3", WeightCode::kInt4, ScaleType::kF32, 1, 3},
    {"mxfp4", WeightCode::kFp4E2m1, ScaleType::kE8m0, 1, 32},
    {"mxfp4_interleaved", WeightCode::kFp4E2m1, ScaleType::kE8m0, 1, 32, Storage::kInterleaved},
};

// A view [n, k] with random codes and scales around it; no NaN, no infinities.
class RandomMatrix {
 public:
  RandomMatrix(std::mt19937& rng, const MatrixSpec& spec, int n, int k) : spec_(spec) {
    const int row_cut = Uniform(rng, 0, 40);
    const int column_cut = Uniform(rng, 0, 150 / spec.column_unit) * spec.column_unit;
    // As the view sees it; stored, a transposed matrix has rows and columns exchanged.
    int rows = n + row_cut + Uniform(rng, 0, 5), columns = k + column_cut + Uniform(rng, 0, 9);
    const bool transposed = spec.storage == Storage::kTransposed;
    if (transposed) std::swap(rows, columns);
    MatrixView all = Store(rng, rows, columns);
    if (transposed) all = all.Transposed();
    view_ = all.Rows(row_cut, row_cut + n).Columns(column_cut, column_cut + k);
  }

  const MatrixView& view() const { return view_; }
  uint8_t* CodeAt(int row, int column) {
    return codes_.data() + (view_.CodeAt(row, column) - codes_.data());
  }

 private:
  static int Uniform(std::mt19937& rng, int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng);
  }

  // Rows with gaps between them, every second one another matrix's if interleaved.
  MatrixView Store(std::mt19937& rng, int rows, int columns) {
    const bool transposed = spec_.storage == Storage::kTransposed;
    const int interleave = spec_.storage == Storage::kInterleaved ? 2 : 1;
    MatrixView v{.n = rows, .k = columns, .code = spec_.code, .scale = spec_.scale};
    v.block_rows = transposed ? spec_.block_columns : spec_.block_rows;
    v.block_columns = transposed ? spec_.block_rows : spec_.block_columns;
    if (v.block_rows == 0) v.block_rows = rows;
    if (v.block_columns == 0) v.block_columns = columns;
    const int64_t row_bytes = (int64_t{columns + Uniform(rng, 0, 3)} * CodeBits(v.code) + 7) / 8;
    const int scale_bytes = ScaleBytes(v.scale);
    const int block_columns = (columns + v.block_columns - 1) / v.block_columns;
    const int block_rows = (rows + v.block_rows - 1) / v.block_rows;
    codes_.resize(interleave * rows * row_bytes);
    scales_.resize(size_t(interleave) * block_rows * block_columns * scale_bytes);
    FillCodes(rng);
    FillScales(rng);
    v.codes = codes_.data() + (interleave - 1) * row_bytes;
    v.code_row_stride = interleave * row_bytes;
    v.scales = scales_.data() + (interleave - 1) * block_columns * scale_bytes;
    v.scale_column_stride = scale_bytes;
    v.scale_row_stride = int64_t{interleave} * block_columns * scale_bytes;
    return v;
  }

  void FillCodes(std::mt19937& rng) {
    std::normal_distribution<float> normal;
    const size_t bytes = std::max(1, CodeBits(spec_.code) / 8);
    for (size_t i = 0; i + bytes <= codes_.size(); i += bytes) {
      const float value = normal(rng);
      uint32_t bits = rng();
      if (spec_.code == WeightCode::kF32) std::memcpy(&bits, &value, sizeof bits);
      if (spec_.code == WeightCode::kBf16) bits = ToBf16(value).bits;
      if (spec_.code == WeightCode::kF16 && (bits >> 10 & 31) > 16) bits &= 0xbfff;  // below 4
      if (spec_.code == WeightCode::kFp8E4m3 && (bits & 0x7f) == 0x7f) bits &= 0xfe;
      std::memcpy(codes_.data() + i, &bits, bytes);
    }
  }

  void FillScales(std::mt19937& rng) {
    std::uniform_real_distribution<float> uniform(0.01f, 0.1f);
    const size_t bytes = std::max(1, ScaleBytes(spec_.scale));
    for (size_t i = 0; i < scales_.size(); i += bytes) {
      const float value = uniform(rng);
      uint32_t bits = static_cast<uint32_t>(Uniform(rng, 110, 130));  // kE8m0
      if (spec_.scale == ScaleType::kF32) std::memcpy(&bits, &value, sizeof bits);
      if (spec_.scale == ScaleType::kBf16) bits = ToBf16(value).bits;
      if (spec_.scale == ScaleType::kF16) bits = 0x2000u + (rng() & 0x7ff);
      std::memcpy(scales_.data() + i, &bits, bytes);
    }
  }

  const MatrixSpec spec_;
  std::vector<uint8_t> codes_, scales_;
  MatrixView view_;
};

// A packed matrix and its memory.
struct PackedCopy {
  PackedCopy(const MatrixView& view, const PackedFormat& format)
      : bytes(PackedBytes(view.n, view.k, format), 0xff),
        matrix{.data = bytes.data(), .n = view.n, .k = view.k, .format = format},
        numbers(Pack(view, format, 0, Tiles(view.n), bytes.data())) {}
  PackedCopy(const MatrixView& view, bool exact) : PackedCopy(view, PackedFormatOf(view, exact)) {}
  PackedCopy(const PackedCopy&) = delete;

  std::vector<uint8_t> bytes;
  PackedMatrix matrix;
  bool numbers;  // what Pack returned
};

// What packing makes of an element of the view, and how far the product may be from it, relatively.
inline float PackedValue(const MatrixView& v, const PackedFormat& f, int row, int column) {
  const float value = v.At(row, column);
  return f.code == PackedCode::kBf16 ? RoundToBf16(value) : value;
}
inline double PackedError(const PackedFormat& f) {
  return f.code == PackedCode::kBf16x2 ? 0x1p-17 : f.lanes != 0 ? 0x1p-24 : 0;
}

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_TESTING_RANDOM_MATRIX_H_
