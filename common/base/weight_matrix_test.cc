// SPDX-License-Identifier: Apache-2.0
#include "common/base/weight_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace kt {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

float Code(WeightCode code, uint32_t bits, bool high = false) {
  return CodeValue(code, reinterpret_cast<const uint8_t*>(&bits), high);
}
float Scale(ScaleType type, uint32_t bits) {
  return ScaleValue(type, reinterpret_cast<const uint8_t*>(&bits));
}

TEST(WeightMatrixTest, CodesStandForTheirNumbers) {
  EXPECT_EQ(Code(WeightCode::kBf16, 0xc0e0), -7);
  EXPECT_EQ(Code(WeightCode::kF32, 0x40490fdb), 3.14159274f);
  EXPECT_EQ(Code(WeightCode::kInt8, 0), -128);
  EXPECT_EQ(Code(WeightCode::kInt8, 255), 127);
  EXPECT_EQ(Code(WeightCode::kInt4, 0x3f), 7);
  EXPECT_EQ(Code(WeightCode::kInt4, 0x3f, true), -5);
  const float fp4[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(Code(WeightCode::kFp4E2m1, i), fp4[i]);
    EXPECT_EQ(Code(WeightCode::kFp4E2m1, (i | 8) << 4, true), -fp4[i]);
  }
  EXPECT_TRUE(std::signbit(Code(WeightCode::kFp4E2m1, 8)));
}

TEST(WeightMatrixTest, Fp8IsTheFnFlavour) {
  for (uint32_t bits = 0; bits < 127; ++bits) {
    const int exponent = bits >> 3, mantissa = bits & 7;
    const float expected = exponent == 0 ? std::ldexp(float(mantissa), -9)
                                         : std::ldexp(float(8 + mantissa), exponent - 10);
    EXPECT_EQ(Code(WeightCode::kFp8E4m3, bits), expected);
    EXPECT_EQ(Code(WeightCode::kFp8E4m3, bits | 128), -expected);
  }
  EXPECT_EQ(Code(WeightCode::kFp8E4m3, 0x7e), 448);
  EXPECT_TRUE(std::isnan(Code(WeightCode::kFp8E4m3, 0x7f)));
  EXPECT_TRUE(std::isnan(Code(WeightCode::kFp8E4m3, 0xff)));
}

TEST(WeightMatrixTest, F16HasSubnormalsInfinitiesAndNan) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const int exponent = bits >> 10, mantissa = bits & 1023;
    const float expected = exponent == 0 ? std::ldexp(float(mantissa), -24)
                                         : std::ldexp(float(1024 + mantissa), exponent - 25);
    ASSERT_EQ(Code(WeightCode::kF16, bits), expected) << bits;
    ASSERT_EQ(Code(WeightCode::kF16, bits | 0x8000), -expected) << bits;
  }
  EXPECT_EQ(Code(WeightCode::kF16, 0xfc00), -kInf);
  EXPECT_TRUE(std::isnan(Code(WeightCode::kF16, 0x7c01)));
}

TEST(WeightMatrixTest, ScalesStandForTheirNumbers) {
  EXPECT_EQ(ScaleValue(ScaleType::kNone, nullptr), 1);
  EXPECT_EQ(Scale(ScaleType::kF32, 0x3f000000), 0.5f);
  EXPECT_EQ(Scale(ScaleType::kBf16, 0x3f00), 0.5f);
  EXPECT_EQ(Scale(ScaleType::kF16, 0x3800), 0.5f);
  EXPECT_EQ(Scale(ScaleType::kE8m0, 0), std::ldexp(1.0f, -127));
  EXPECT_EQ(Scale(ScaleType::kE8m0, 1), std::ldexp(1.0f, -126));
  EXPECT_EQ(Scale(ScaleType::kE8m0, 254), std::ldexp(1.0f, 127));
  EXPECT_TRUE(std::isnan(Scale(ScaleType::kE8m0, 255)));
}

// 70 x 90 codes with a scale per block of 24 x 16.
struct Blocked {
  explicit Blocked(WeightCode code) {
    const int bits = CodeBits(code);
    for (int i = 0; i < 70 * 90 * bits / 8; ++i)
      codes.push_back(static_cast<uint8_t>((i * 31 + i / 97) % 120));
    for (int i = 0; i < 3 * 6; ++i) scales.push_back(1.5f + static_cast<float>(i));
    view = {.n = 70, .k = 90, .code = code, .scale = ScaleType::kF32};
    view.block_rows = 24;
    view.block_columns = 16;
    view.codes = codes.data();
    view.code_row_stride = 90 * bits / 8;
    view.scales = reinterpret_cast<const uint8_t*>(scales.data());
    view.scale_row_stride = 6 * sizeof(float);
    view.scale_column_stride = sizeof(float);
  }
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  MatrixView view;
};

TEST(WeightMatrixTest, SlicesSeeTheElementsTheyWereCutFrom) {
  for (WeightCode code : {WeightCode::kBf16, WeightCode::kFp8E4m3, WeightCode::kInt4}) {
    const Blocked all(code);
    EXPECT_EQ(all.view.At(25, 17),
              8.5f * (code == WeightCode::kInt4
                          ? float((all.codes[25 * 45 + 8] >> 4) - 8)
                          : CodeValue(code, &all.codes[(25 * 90 + 17) * CodeBits(code) / 8])));
    const MatrixView twice = all.view.Rows(5, 66).Rows(25, 60).Columns(6, 80).Columns(14, 70);
    ASSERT_EQ(twice.n, 35);
    ASSERT_EQ(twice.k, 56);
    for (int r = 0; r < twice.n; ++r) {
      for (int c = 0; c < twice.k; ++c) ASSERT_EQ(twice.At(r, c), all.view.At(30 + r, 20 + c));
    }
  }
}

TEST(WeightMatrixTest, TransposedViewsExchangeRowsAndColumns) {
  for (WeightCode code : {WeightCode::kBf16, WeightCode::kFp8E4m3}) {
    const Blocked all(code);
    const MatrixView t = all.view.Columns(10, 80).Transposed().Rows(3, 60).Columns(11, 70);
    const MatrixView back = t.Transposed();
    ASSERT_EQ(t.n, 57);
    ASSERT_EQ(t.k, 59);
    for (int r = 0; r < t.n; ++r) {
      for (int c = 0; c < t.k; ++c) {
        ASSERT_EQ(t.At(r, c), all.view.At(11 + c, 13 + r));
        ASSERT_EQ(back.At(c, r), t.At(r, c));
      }
    }
  }
}

TEST(WeightMatrixTest, InterleavedRowsAreAViewOfDoubledStrides) {
  Blocked all(WeightCode::kInt8);
  all.view.block_rows = 1;
  all.scales.resize(70 * 6);
  for (size_t i = 0; i < all.scales.size(); ++i) all.scales[i] = static_cast<float>(i);
  all.view.scales = reinterpret_cast<const uint8_t*>(all.scales.data());
  MatrixView odd = all.view.Rows(1, 70);
  odd.n = 35;
  odd.code_row_stride *= 2;
  odd.scale_row_stride *= 2;
  const MatrixView cut = odd.Rows(4, 30);
  for (int r = 0; r < cut.n; ++r) {
    for (int c = 0; c < cut.k; ++c) ASSERT_EQ(cut.At(r, c), all.view.At(9 + 2 * r, c));
  }
}

}  // namespace
}  // namespace kt
