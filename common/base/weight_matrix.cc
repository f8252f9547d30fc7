// SPDX-License-Identifier: Apache-2.0
#include "common/base/weight_matrix.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace kt {
namespace {

template <typename T>
T Read(const uint8_t* p) {
  T x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// A float of fewer exponent bits, moved to where fp32 has its own, is off by a power of two, also
// if it is subnormal: one exact product mends that.
float FromF16(uint16_t bits) {
  const uint32_t magnitude = uint32_t{bits & 0x7fffu} << 13, sign = uint32_t{bits & 0x8000u} << 16;
  const float value = (bits & 0x7c00) == 0x7c00
                          ? std::bit_cast<float>(magnitude | 0x7f800000u)  // infinities and NaN
                          : std::bit_cast<float>(magnitude) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

float FromFp8E4m3(uint8_t bits) {
  const uint32_t magnitude = uint32_t{bits & 0x7fu} << 20, sign = uint32_t{bits & 0x80u} << 24;
  const float value = (bits & 0x7f) == 0x7f ? std::numeric_limits<float>::quiet_NaN()
                                            : std::bit_cast<float>(magnitude) * 0x1p120f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

float FromFp4E2m1(int bits) {
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return std::copysign(kMagnitudes[bits & 7], (bits & 8) != 0 ? -1.0f : 1.0f);
}

float FromE8m0(uint8_t bits) {
  if (bits == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(bits == 0 ? 0x00400000u : uint32_t{bits} << 23);
}

}  // namespace

float CodeValue(WeightCode code, const uint8_t* p, bool high_nibble) {
  const int nibble = high_nibble ? *p >> 4 : *p & 15;
  switch (code) {
    case WeightCode::kBf16:
      return FromBf16(Read<uint16_t>(p));
    case WeightCode::kF16:
      return FromF16(Read<uint16_t>(p));
    case WeightCode::kF32:
      return Read<float>(p);
    case WeightCode::kFp8E4m3:
      return FromFp8E4m3(*p);
    case WeightCode::kInt8:
      return static_cast<float>(int{*p} - 128);
    case WeightCode::kInt4:
      return static_cast<float>(nibble - 8);
    case WeightCode::kFp4E2m1:
      return FromFp4E2m1(nibble);
  }
  return 0;
}

float ScaleValue(ScaleType type, const uint8_t* p) {
  switch (type) {
    case ScaleType::kNone:
      return 1;
    case ScaleType::kF32:
      return Read<float>(p);
    case ScaleType::kBf16:
      return FromBf16(Read<uint16_t>(p));
    case ScaleType::kF16:
      return FromF16(Read<uint16_t>(p));
    case ScaleType::kE8m0:
      return FromE8m0(*p);
  }
  return 1;
}

MatrixView MatrixView::Rows(int begin, int end) const {
  MatrixView v = *this;
  v.n = end - begin;
  v.codes += begin * code_row_stride;
  v.scales += (row_origin + begin) / block_rows * scale_row_stride;
  v.row_origin = (row_origin + begin) % block_rows;
  return v;
}

MatrixView MatrixView::Columns(int begin, int end) const {
  MatrixView v = *this;
  v.k = end - begin;
  if (code_column_stride != 0) {
    v.codes += begin * code_column_stride;
  } else {
    v.first_column += begin;
  }
  v.scales += (column_origin + begin) / block_columns * scale_column_stride;
  v.column_origin = (column_origin + begin) % block_columns;
  return v;
}

MatrixView MatrixView::Transposed() const {
  int64_t element = CodeBits(code) / 8;
  MatrixView v = *this;
  v.n = k;
  v.k = n;
  v.codes += first_column * element;
  v.first_column = 0;
  v.code_row_stride = code_column_stride != 0 ? code_column_stride : element;
  v.code_column_stride = code_row_stride;
  v.block_rows = block_columns;
  v.block_columns = block_rows;
  v.row_origin = column_origin;
  v.column_origin = row_origin;
  v.scale_row_stride = scale_column_stride;
  v.scale_column_stride = scale_row_stride;
  return v;
}

const uint8_t* MatrixView::CodeAt(int row, int column) const {
  const int64_t offset = code_column_stride != 0 ? column * code_column_stride
                                                 : (first_column + column) * CodeBits(code) / 8;
  return codes + row * code_row_stride + offset;
}

const uint8_t* MatrixView::ScaleAt(int row, int column) const {
  return scales + (row_origin + row) / block_rows * scale_row_stride +
         (column_origin + column) / block_columns * scale_column_stride;
}

float MatrixView::At(int row, int column) const {
  const float number = CodeValue(code, CodeAt(row, column), (first_column + column) % 2 != 0);
  return scale == ScaleType::kNone ? number : number * ScaleValue(scale, ScaleAt(row, column));
}

}  // namespace kt
