// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/packed_bf16.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "kernels/cpu/gemm/testing/kernel_testing.h"

namespace kt {
namespace {

uint16_t At(const std::vector<bf16>& packed, int k, int row, int column) {
  return packed[(row / 16) * ((k + 1) / 2) * 32 + (column / 2) * 32 + (row % 16) * 2 + column % 2]
      .bits;
}

TEST(PackedBf16Test, LayoutIsTilesOfSixteenRowsAndPairsWithZeroPadding) {
  std::mt19937 rng(1);
  std::uniform_int_distribution<int> n_of(1, 70), k_of(1, 90);
  for (int i = 0; i < 200; ++i) {
    const int n = n_of(rng), k = k_of(rng), stride = k + i % 5;
    const std::vector<bf16> w = RandomBf16(rng, n * stride);
    const int rows = (n + 15) / 16 * 16, columns = (k + 1) / 2 * 2;
    ASSERT_EQ(PackedBf16Bytes(n, k), size_t(rows) * columns * 2);
    std::vector<bf16> packed(rows * columns, bf16{0xffff});
    PackBf16(w.data(), stride, n, k, packed.data());
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) {
        ASSERT_EQ(At(packed, k, r, c), r < n && c < k ? w[r * stride + c].bits : 0)
            << n << "x" << k << " at " << r << "," << c;
      }
    }
  }
}

TEST(PackedBf16Test, ColumnRangeOfALargerMatrixPacksLikeItsCopy) {
  std::mt19937 rng(2);
  const int n = 35, columns = 64, begin = 21, k = 30;
  const std::vector<bf16> w = RandomBf16(rng, n * columns);
  std::vector<bf16> copy;
  for (int r = 0; r < n; ++r)
    copy.insert(copy.end(), &w[r * columns + begin], &w[r * columns + begin] + k);
  std::vector<bf16> from_range(PackedBf16Bytes(n, k) / 2), from_copy(from_range.size());
  PackBf16(w.data() + begin, columns, n, k, from_range.data());
  PackBf16(copy.data(), k, n, k, from_copy.data());
  EXPECT_EQ(std::memcmp(from_range.data(), from_copy.data(), from_copy.size() * 2), 0);
}

TEST(PackedBf16Test, TileRangesPackSeparately) {
  std::mt19937 rng(3);
  const int n = 50, k = 25;
  const std::vector<bf16> w = RandomBf16(rng, n * k);
  std::vector<bf16> whole(PackedBf16Bytes(n, k) / 2), parts(whole.size());
  PackBf16(w.data(), k, n, k, whole.data());
  PackBf16(w.data(), k, 32, k, parts.data());
  PackBf16(w.data() + 32 * k, k, n - 32, k, parts.data() + 2 * TileElements(k));
  EXPECT_EQ(std::memcmp(whole.data(), parts.data(), parts.size() * 2), 0);
}

TEST(PackedBf16Test, UnpackRowReturnsTheRow) {
  std::mt19937 rng(4);
  const int n = 37, k = 51;
  const std::vector<bf16> w = RandomBf16(rng, n * k);
  std::vector<bf16> packed(PackedBf16Bytes(n, k) / 2), row(k);
  std::vector<float> row_f32(k);
  PackBf16(w.data(), k, n, k, packed.data());
  for (int r = 0; r < n; ++r) {
    UnpackRow(packed.data(), n, k, r, row.data());
    UnpackRow(packed.data(), n, k, r, row_f32.data());
    for (int c = 0; c < k; ++c) {
      ASSERT_EQ(row[c].bits, w[r * k + c].bits);
      ASSERT_EQ(row_f32[c], ToFloat(w[r * k + c]));
    }
  }
}

}  // namespace
}  // namespace kt
