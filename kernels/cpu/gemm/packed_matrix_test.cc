// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/packed_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/cpu/gemm/testing/kernel_testing.h"
#include "kernels/cpu/gemm/testing/random_matrix.h"

namespace kt {
namespace {

class PackedMatrixTest : public testing::TestWithParam<MatrixSpec> {
 protected:
  std::mt19937 rng_{20240611};
};

TEST_P(PackedMatrixTest, RowsReadBackAsTheyAreStored) {
  std::uniform_int_distribution<int> n_of(1, 90), k_of(1, 300);
  for (int i = 0; i < 40; ++i) {
    RandomMatrix random(rng_, GetParam(), n_of(rng_), k_of(rng_));
    const MatrixView& v = random.view();
    for (bool exact : {true, false}) {
      PackedCopy packed(v, exact);
      ASSERT_EQ(packed.bytes.size() % 64, 0u);
      std::vector<float> row(v.k);
      std::vector<bf16> row_bf16(v.k);
      for (int r = 0; r < v.n; ++r) {
        UnpackRow(packed.matrix, r, row.data());
        UnpackRow(packed.matrix, r, row_bf16.data());
        for (int c = 0; c < v.k; ++c) {
          const float expected = PackedValue(v, packed.matrix.format, r, c);
          const double error =
              packed.matrix.format.code == PackedCode::kBf16x2 && v.code != WeightCode::kF16
                  ? 0x1p-17
                  : 0;
          ASSERT_NEAR(row[c], expected, error * std::abs(expected))
              << v.n << "x" << v.k << " at " << r << "," << c;
          ASSERT_EQ(row_bf16[c].bits, ToBf16(row[c]).bits);
        }
      }
    }
  }
}

TEST_P(PackedMatrixTest, TileRangesPackSeparately) {
  RandomMatrix random(rng_, GetParam(), 75, 133);
  PackedCopy whole(random.view(), true);
  const PackedFormat& format = whole.matrix.format;
  std::vector<uint8_t> parts(whole.bytes.size() + 1, 0xff);
  EXPECT_TRUE(Pack(random.view(), format, 3, 5, parts.data()));
  const size_t begin = 3 * PackedTileBytes(133, format);
  EXPECT_EQ(std::count(parts.begin(), parts.begin() + begin, 0xff), int64_t(begin));
  EXPECT_TRUE(Pack(random.view(), format, 0, 3, parts.data()));
  EXPECT_EQ(parts.back(), 0xff);
  parts.pop_back();
  EXPECT_EQ(parts, whole.bytes);
}

INSTANTIATE_TEST_SUITE_P(Formats, PackedMatrixTest, testing::ValuesIn(kMatrixSpecs),
                         [](const auto& info) { return info.param.name; });

MatrixView PlainBf16(const std::vector<bf16>& w, int n, int k, int stride) {
  return {.n = n,
          .k = k,
          .codes = reinterpret_cast<const uint8_t*>(w.data()),
          .code_row_stride = 2 * stride};
}

TEST(PackedBf16Test, LayoutIsTilesOfSixteenRowsAndPairsWithZeroPadding) {
  std::mt19937 rng(1);
  std::uniform_int_distribution<int> n_of(1, 70), k_of(1, 90);
  for (int i = 0; i < 200; ++i) {
    const int n = n_of(rng), k = k_of(rng), stride = k + i % 5;
    const std::vector<bf16> w = RandomBf16(rng, n * stride);
    const int rows = (n + 15) / 16 * 16, columns = (k + 1) / 2 * 2;
    PackedCopy packed(PlainBf16(w, n, k, stride), true);
    ASSERT_EQ(packed.bytes.size(), size_t(rows) * columns * 2);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) {
        const int at = (r / 16) * (columns / 2) * 32 + (c / 2) * 32 + (r % 16) * 2 + c % 2;
        bf16 element;
        std::memcpy(&element, &packed.bytes[2 * at], sizeof element);
        ASSERT_EQ(element.bits, r < n && c < k ? w[r * stride + c].bits : 0)
            << n << "x" << k << " at " << r << "," << c;
      }
    }
  }
}

// A matrix of codes 1, 8, 15, ... 18 x 21, with a scale per row and eight columns.
struct Counting {
  explicit Counting(WeightCode code) {
    const int bits = CodeBits(code), row_bytes = bits == 8 ? 21 : 11;
    for (int i = 0; i < 18 * row_bytes; ++i) codes.push_back(static_cast<uint8_t>(i * 7 + 1));
    if (code == WeightCode::kFp8E4m3) {
      for (uint8_t& c : codes) c = (c & 0x7f) == 0x7f ? 0 : c;
    }
    for (int i = 0; i < 18 * 3; ++i) scales.push_back(static_cast<uint8_t>(100 + i));
    view = {.n = 18, .k = 21, .code = code, .scale = ScaleType::kE8m0, .block_columns = 8};
    view.codes = codes.data();
    view.code_row_stride = row_bytes;
    view.scales = scales.data();
    view.scale_row_stride = 3;
    view.scale_column_stride = 1;
  }
  uint8_t Code(int r, int c) const {
    return CodeBits(view.code) == 8 ? codes[r * 21 + c] : codes[r * 11 + c / 2] >> (c % 2 * 4) & 15;
  }
  std::vector<uint8_t> codes, scales;
  MatrixView view;
};

// Where docs/formats/packed_expert.md says a code lies in a tile: byte and shift.
std::pair<int, int> Place(WeightCode code, int row, int c) {
  if (code == WeightCode::kFp8E4m3)
    return {c / 4 * 64 + row / 4 * 16 + c % 4 / 2 * 8 + row % 4 * 2 + c % 2, 0};
  if (code == WeightCode::kInt8) return {c / 4 * 64 + row * 4 + c % 4, 0};
  constexpr int kNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  return {c / 8 * 64 + row * 4 + kNibble[c % 8] / 2, kNibble[c % 8] % 2 * 4};
}

TEST(PackedMatrixLayoutTest, CodesThenScalesOfEachTileWithCodesOfZeroAsPadding) {
  for (auto [code, zero] : {std::pair{WeightCode::kInt8, 0x80}, std::pair{WeightCode::kFp8E4m3, 0},
                            std::pair{WeightCode::kInt4, 8}, std::pair{WeightCode::kFp4E2m1, 0}}) {
    Counting counting(code);
    PackedCopy packed(counting.view, true);
    EXPECT_TRUE(packed.numbers);
    EXPECT_EQ(packed.matrix.format.lanes, 16);
    const int units = CodeBits(code) == 8 ? 6 : 3, mask = CodeBits(code) == 8 ? 255 : 15;
    const size_t tile_bytes = (units * 64 + 3 * 16 + 63) / 64 * 64;
    ASSERT_EQ(packed.bytes.size(), 2 * tile_bytes);
    for (int r = 0; r < 32; ++r) {
      const uint8_t* tile = packed.bytes.data() + r / 16 * tile_bytes;
      for (int c = 0; c < 24; ++c) {
        const auto [byte, shift] = Place(code, r % 16, c);
        ASSERT_EQ(tile[byte] >> shift & mask, r < 18 && c < 21 ? counting.Code(r, c) : zero)
            << r << " " << c;
      }
      for (int g = 0; g < 3; ++g) {
        ASSERT_EQ(tile[units * 64 + g * 16 + r % 16], r < 18 ? counting.scales[r * 3 + g] : 0);
      }
    }
  }
}

TEST(PackedMatrixLayoutTest, NanCodesOfFp8AreReported) {
  for (uint8_t nan : {0x7f, 0xff}) {
    Counting counting(WeightCode::kFp8E4m3);
    counting.codes[17 * 21 + 20] = nan;
    EXPECT_FALSE(PackedCopy(counting.view, true).numbers);
    Counting integers(WeightCode::kInt8);
    integers.codes[17 * 21 + 20] = nan;
    EXPECT_TRUE(PackedCopy(integers.view, true).numbers);
  }
}

TEST(PackedFormatTest, TilesWithinOneBlockRowHaveOneScale) {
  MatrixView v{.n = 256, .k = 300, .code = WeightCode::kFp8E4m3, .scale = ScaleType::kF32};
  v.block_rows = v.block_columns = 128;
  const PackedFormat block{PackedCode::kFp8E4m3, ScaleType::kF32, 1, 128, 0};
  EXPECT_EQ(PackedFormatOf(v, true), block);
  EXPECT_EQ(PackedFormatOf(v.Rows(48, 200), true), block);
  EXPECT_EQ(PackedFormatOf(v.Rows(24, 200), true).lanes, 16);
  EXPECT_EQ(PackedFormatOf(v.Rows(24, 100), true).lanes, 1) << "all of it in one block";
  EXPECT_EQ(PackedFormatOf(v.Columns(160, 300), true).origin, 32);
  EXPECT_EQ(PackedBytes(256, 300, block), 16u * (75 * 64 + 64));
}

TEST(PackedFormatTest, WhatTilesCannotHoldIsMultipliedOut) {
  MatrixView v{.n = 32, .k = 64, .code = WeightCode::kInt4, .scale = ScaleType::kF16};
  v.block_columns = 32;
  EXPECT_EQ(PackedFormatOf(v, false),
            (PackedFormat{PackedCode::kInt4, ScaleType::kF32, 16, 32, 0}));
  MatrixView odd = v;
  odd.block_columns = 31;
  EXPECT_EQ(PackedFormatOf(odd, false).code, PackedCode::kBf16);
  EXPECT_EQ(PackedFormatOf(odd, true), PackedFormat{PackedCode::kBf16x2});
  odd.block_columns = 12;
  EXPECT_EQ(PackedFormatOf(odd, true).code, PackedCode::kBf16x2) << "groups begin inside units";
  odd = v;
  odd.first_column = 1;
  EXPECT_EQ(PackedFormatOf(odd, true).code, PackedCode::kBf16x2);
  odd = v;
  odd.code = WeightCode::kFp8E4m3;
  EXPECT_EQ(PackedFormatOf(odd.Columns(3, 60), true).code, PackedCode::kBf16x2);
  EXPECT_EQ(PackedFormatOf(odd.Columns(3, 30), true).code, PackedCode::kFp8E4m3) << "one group";
  EXPECT_EQ(PackedFormatOf({.n = 1, .k = 1, .code = WeightCode::kF16}, false).code,
            PackedCode::kBf16);
  EXPECT_EQ(PackedFormatOf({.n = 1, .k = 1}, true).code, PackedCode::kBf16);
}

TEST(PackedBf16x2Test, InfinitiesAndNanStayThemselves) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float values[] = {kInf, -kInf, std::nanf(""), std::numeric_limits<float>::max()};
  MatrixView v{.n = 1, .k = 4, .code = WeightCode::kF32};
  v.codes = reinterpret_cast<const uint8_t*>(values);
  PackedCopy packed(v, true);
  float row[4];
  UnpackRow(packed.matrix, 0, row);
  EXPECT_EQ(row[0], kInf);
  EXPECT_EQ(row[1], -kInf);
  EXPECT_TRUE(std::isnan(row[2]));
  EXPECT_EQ(row[3], kInf) << "the nearest bf16";
}

}  // namespace
}  // namespace kt
