// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/read_row.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "kernels/cpu/gemm/testing/random_matrix.h"

namespace kt {
namespace {

class ReadRowTest : public testing::TestWithParam<MatrixSpec> {};

TEST_P(ReadRowTest, EveryElementHasTheBitsOfAt) {
  std::mt19937 rng(20240701);
  std::uniform_int_distribution<int> n_of(1, 40), k_of(1, 300);
  for (int i = 0; i < 40; ++i) {
    RandomMatrix random(rng, GetParam(), n_of(rng), k_of(rng));
    const MatrixView& v = random.view();
    std::vector<float> row(v.k);
    for (int r = 0; r < v.n; ++r) {
      ReadRow(v, r, row.data());
      for (int c = 0; c < v.k; ++c) {
        ASSERT_EQ(std::bit_cast<uint32_t>(row[c]), std::bit_cast<uint32_t>(v.At(r, c)))
            << v.n << "x" << v.k << " at " << r << "," << c;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ReadRowTest, testing::ValuesIn(kMatrixSpecs),
                         [](const auto& info) { return info.param.name; });

TEST(ReadRowTest, FourBitsFromAnOddColumn) {
  const uint8_t codes[] = {0x21, 0x43, 0x65};
  MatrixView v{.n = 1, .k = 4, .code = WeightCode::kInt4, .codes = codes, .first_column = 1};
  float row[4];
  ReadRow(v, 0, row);
  for (int c = 0; c < 4; ++c) EXPECT_EQ(row[c], static_cast<float>(c + 2 - 8));
}

}  // namespace
}  // namespace kt
