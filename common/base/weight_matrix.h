// SPDX-License-Identifier: Apache-2.0
// A weight matrix as a checkpoint stores it: codes, scales beside them, and where each lies.
// Slices, transposes and rows that interleave with others are views of the same bytes. What the
// formats mean stands in docs/formats/weights.md.
#ifndef KT_COMMON_BASE_WEIGHT_MATRIX_H_
#define KT_COMMON_BASE_WEIGHT_MATRIX_H_

#include <cstdint>

namespace kt {

// One element of a matrix. Value = number(code) * scale of its block.
enum class WeightCode : uint8_t {
  kBf16,
  kF16,
  kF32,
  kFp8E4m3,  // "fn": no infinities, largest 448, 0x7f and 0xff are NaN
  kInt8,     // offset binary: byte - 128
  kInt4,     // offset binary: nibble - 8, the low nibble is the even column
  kFp4E2m1,  // 0 .5 1 1.5 2 3 4 6, bit 3 the sign, the low nibble is the even column
};
constexpr int CodeBits(WeightCode code) {
  switch (code) {
    case WeightCode::kF32:
      return 32;
    case WeightCode::kBf16:
    case WeightCode::kF16:
      return 16;
    case WeightCode::kFp8E4m3:
    case WeightCode::kInt8:
      return 8;
    case WeightCode::kInt4:
    case WeightCode::kFp4E2m1:
      return 4;
  }
  return 0;
}

enum class ScaleType : uint8_t {
  kNone,
  kF32,
  kBf16,
  kF16,
  kE8m0,  // 2^(byte - 127), 255 is NaN
};
constexpr int ScaleBytes(ScaleType type) {
  switch (type) {
    case ScaleType::kNone:
      return 0;
    case ScaleType::kF32:
      return 4;
    case ScaleType::kBf16:
    case ScaleType::kF16:
      return 2;
    case ScaleType::kE8m0:
      return 1;
  }
  return 0;
}

// The number that the code at p stands for; high_nibble picks one of two codes of 4 bits.
float CodeValue(WeightCode code, const uint8_t* p, bool high_nibble = false);
// kNone: 1, and p is not read.
float ScaleValue(ScaleType type, const uint8_t* p);

// Logical [n, k] = [out, in]. The bytes belong to the checkpoint's mapping and need not be aligned.
// Strides are in bytes. Element (r, c) has its code at codes + r * code_row_stride + (first_column
// + c) * CodeBits / 8 (the nibble as the code says), or, where code_column_stride is not 0 (16 bits
// and 8 bits only), at codes + r * code_row_stride + c * code_column_stride. Its scale is that of
// block
// ((row_origin + r) / block_rows, (column_origin + c) / block_columns), at
// scales + block_row * scale_row_stride + block_column * scale_column_stride. The origins are what
// a slice has cut off: they tell where in its first block it begins.
struct MatrixView {
  int n = 0;
  int k = 0;
  WeightCode code = WeightCode::kBf16;
  ScaleType scale = ScaleType::kNone;
  int block_rows = 1;
  int block_columns = 1;  // a scale of the whole row: at least column_origin + k
  int row_origin = 0;     // < block_rows
  int column_origin = 0;  // < block_columns
  const uint8_t* codes = nullptr;
  int64_t code_row_stride = 0;
  int64_t code_column_stride = 0;
  int64_t first_column = 0;  // 4 bits: even
  const uint8_t* scales = nullptr;
  int64_t scale_row_stride = 0;
  int64_t scale_column_stride = 0;

  MatrixView Rows(int begin, int end) const;
  // 4 bits: begin is even.
  MatrixView Columns(int begin, int end) const;
  // Codes of 8 bits or more.
  MatrixView Transposed() const;
  // Where the code and the scale of an element lie; there must be scales.
  const uint8_t* CodeAt(int row, int column) const;
  const uint8_t* ScaleAt(int row, int column) const;
  // fp32(number(code)) * fp32(scale), one fp32 product: the reference that everything else is
  // compared with.
  float At(int row, int column) const;
};

}  // namespace kt

#endif  // KT_COMMON_BASE_WEIGHT_MATRIX_H_
