// SPDX-License-Identifier: Apache-2.0
#include "common/base/weight_matrix.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace kt {
namespace {

template <typename T>
T Read(const uint8_t* p) {
  T x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

float FromF16(uint16_t bits) {
  int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float magnitude = exponent == 31 ? (mantissa != 0 ? NAN : INFINITY)
                    : exponent == 0
                        ? std::ldexp(static_cast<float>(mantissa), -24)
                        : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  return std::copysign(magnitude, (bits & 0x8000) != 0 ? -1.0f : 1.0f);
}

float FromFp8E4m3(uint8_t bits) {
  int exponent = bits >> 3 & 15, mantissa = bits & 7;
  float magnitude = (bits & 0x7f) == 0x7f ? NAN
                    : exponent == 0       ? std::ldexp(static_cast<float>(mantissa), -9)
                                    : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return std::copysign(magnitude, (bits & 0x80) != 0 ? -1.0f : 1.0f);
}

float FromFp4E2m1(int bits) {
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return (bits & 8) != 0 ? -kMagnitudes[bits & 7] : kMagnitudes[bits & 7];
}

float Number(WeightCode code, const uint8_t* p, bool high_nibble) {
  int nibble = high_nibble ? *p >> 4 : *p & 15;
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

float Scale(ScaleType type, const uint8_t* p) {
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
      return *p == 255 ? NAN : std::ldexp(1.0f, int{*p} - 127);
  }
  return 1;
}

}  // namespace

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

float MatrixView::At(int row, int column) const {
  const uint8_t* row_codes = codes + row * code_row_stride;
  int64_t at = first_column + column;
  const uint8_t* code_at = code_column_stride != 0 ? row_codes + column * code_column_stride
                                                   : row_codes + at * CodeBits(code) / 8;
  float number = Number(code, code_at, at % 2 != 0);
  if (scale == ScaleType::kNone) return number;
  return number * Scale(scale, scales + (row_origin + row) / block_rows * scale_row_stride +
                                   (column_origin + column) / block_columns * scale_column_stride);
}

}  // namespace kt
