// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/int8_gemm/int8_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cpu/gemm/testing/kernel_testing.h"
#include "kernels/cpu/gemm/testing/random_matrix.h"

namespace kt {
namespace {

constexpr float kUntouched = 12345.0f;

struct PackedInt8 : PackedCopy {
  PackedInt8(const MatrixView& view, PackedCode code)
      : PackedCopy(view, Int8XFormat(code, view.k)) {}
};

// Rows and their memory; every row a little longer than it must be.
struct RowsCopy {
  RowsCopy(PackedCode code, bool x_is_bf16, const void* x, int64_t x_stride, int count, int k)
      : codes(count * (Int8RowBytes(k) + 3), 99), scales(count), sums(count) {
    rows = {codes.data(), Int8RowBytes(k) + 3, scales.data(), sums.data()};
    QuantizeRows(code, x_is_bf16, x, x_stride, count, k, rows);
  }
  RowsCopy(const RowsCopy&) = delete;

  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  Int8Rows rows;
};

// A row rounded by the definition: to fp32 scale amax / levels and nearest even of x times the
// scale's reciprocal.
struct Rounded {
  template <typename Values>
  Rounded(int k, int levels, Values values) : codes(k) {
    float amax = 0;
    for (int c = 0; c < k; ++c) amax = std::max(amax, std::abs(values(c)));
    scale = static_cast<float>(double{amax} / levels);
    const float reciprocal = scale == 0 ? 0 : 1 / scale;
    for (int c = 0; c < k; ++c) codes[c] = static_cast<int>(std::nearbyint(values(c) * reciprocal));
  }
  float scale;
  std::vector<int> codes;
};

// The row of a matrix as formats like AMXINT4 define it: codes times scale are its values.
Rounded RoundedRow(const MatrixView& v, PackedCode code, int row) {
  Rounded r(v.k, code == PackedCode::kInt8 ? 127 : 112, [&](int c) { return v.At(row, c); });
  if (code == PackedCode::kInt8) return r;
  for (int& q : r.codes) q = (q < 0 ? -1 : 1) * ((std::abs(q) + 8) >> 4) * 16;
  return r;
}

struct Problem {
  Problem(std::mt19937& rng, PackedCode code, int tokens, int n, int k,
          const MatrixSpec& spec = kMatrixSpecs[0])
      : code(code),
        tokens(tokens),
        n(n),
        k(k),
        x_stride(k + 3),
        y_stride(n + 5),
        x(RandomBf16(rng, tokens * x_stride)),
        w(rng, spec, n, k),
        packed(w.view(), code),
        rows(code, true, x.data(), x_stride, tokens, k) {}

  Int8GemmArgs Args(float* y) const { return {rows.rows, tokens, packed.matrix, y, y_stride}; }
  std::vector<float> Run(Isa isa) const {
    std::vector<float> y(tokens * y_stride, kUntouched);
    Int8Gemm(SelectInt8Gemm(isa), Args(y.data()), 0, Tiles(n));
    return y;
  }

  PackedCode code;
  int tokens, n, k;
  int64_t x_stride, y_stride;
  std::vector<bf16> x;
  RandomMatrix w;
  PackedInt8 packed;
  RowsCopy rows;
};

void ExpectDefinition(const Problem& p, const std::vector<float>& y) {
  std::vector<Rounded> x;
  for (int t = 0; t < p.tokens; ++t)
    x.emplace_back(p.k, 127, [&](int c) { return ToFloat(p.x[t * p.x_stride + c]); });
  for (int j = 0; j < p.n; ++j) {
    const Rounded w = RoundedRow(p.w.view(), p.code, j);
    for (int t = 0; t < p.tokens; ++t) {
      int64_t sum = 0;
      for (int c = 0; c < p.k; ++c) sum += int64_t{x[t].codes[c]} * w.codes[c];
      ASSERT_EQ(y[t * p.y_stride + j], (x[t].scale * w.scale) * static_cast<float>(sum))
          << "token " << t << " column " << j << " of " << p.tokens << "x" << p.n << "x" << p.k;
    }
  }
  for (int t = 0; t < p.tokens; ++t) {
    for (int64_t j = p.n; j < p.y_stride; ++j) ASSERT_EQ(y[t * p.y_stride + j], kUntouched);
  }
}

const char* NameOf(PackedCode code) { return code == PackedCode::kInt8 ? "int8" : "int4"; }

class Int8GemmTest : public testing::TestWithParam<std::tuple<Isa, PackedCode>> {
 protected:
  void SetUp() override {
    if (!CanRun(isa())) GTEST_SKIP() << "this CPU cannot run " << IsaName(isa());
  }
  Isa isa() const { return std::get<0>(GetParam()); }
  PackedCode code() const { return std::get<1>(GetParam()); }
  const Int8GemmKernels& kernels() const { return SelectInt8Gemm(isa()); }
  std::mt19937 rng_{20240702};
};

TEST_P(Int8GemmTest, OddShapesHaveTheBitsOfTheDefinition) {
  std::uniform_int_distribution<int> tokens(1, 40), n(1, 150), k(1, 300);
  for (int i = 0; i < 150; ++i) {
    Problem p(rng_, code(), tokens(rng_), n(rng_), k(rng_));
    ExpectDefinition(p, p.Run(isa()));
  }
}

TEST_P(Int8GemmTest, EveryFormatIsRoundedAnew) {
  std::uniform_int_distribution<int> n(1, 40), k(1, 300);
  for (const MatrixSpec& spec : kMatrixSpecs) {
    SCOPED_TRACE(spec.name);
    for (int i = 0; i < 3; ++i) {
      Problem p(rng_, code(), 2, n(rng_), k(rng_), spec);
      ExpectDefinition(p, p.Run(isa()));
    }
  }
}

TEST_P(Int8GemmTest, RowAloneHasTheBitsItHasInABatchAndInAnyTileRange) {
  std::uniform_int_distribution<int> tokens(1, 100), n(1, 300), k(1, 1000);
  for (int i = 0; i < 12; ++i) {
    Problem p(rng_, code(), i == 0 ? 600 : tokens(rng_), n(rng_), k(rng_));
    const std::vector<float> batch = p.Run(isa());
    ASSERT_EQ(batch, p.Run(Isa::kScalar));
    std::vector<float> alone(p.y_stride, kUntouched);
    for (int t = 0; t < p.tokens; t += 1 + p.tokens / 9) {
      const RowsCopy row(code(), true, p.x.data() + t * p.x_stride, p.x_stride, 1, p.k);
      for (int tile = 0; tile < Tiles(p.n);) {
        const int end = std::min(Tiles(p.n), tile + std::uniform_int_distribution<int>(1, 7)(rng_));
        Int8Gemm(kernels(), {row.rows, 1, p.packed.matrix, alone.data(), p.y_stride}, tile, end);
        tile = end;
      }
      ASSERT_EQ(std::memcmp(alone.data(), &batch[t * p.y_stride], alone.size() * sizeof(float)), 0)
          << "token " << t << " of " << p.tokens << "x" << p.n << "x" << p.k;
    }
  }
}

TEST_P(Int8GemmTest, EveryNumberOfTokensAndTiles) {
  for (int tokens = 0; tokens <= 30; ++tokens) {
    for (int tiles = 1; tiles <= 6; ++tiles) {
      Problem p(rng_, code(), tokens, 16 * tiles, 37);
      ASSERT_EQ(p.Run(isa()), p.Run(Isa::kScalar)) << tokens << " " << tiles;
    }
  }
}

TEST_P(Int8GemmTest, TileRangeWritesItsColumnsOnly) {
  Problem p(rng_, code(), 9, 100, 64);
  std::vector<float> y(p.tokens * p.y_stride, kUntouched);
  Int8Gemm(kernels(), p.Args(y.data()), 2, 4);
  for (int t = 0; t < p.tokens; ++t) {
    for (int64_t j = 0; j < p.y_stride; ++j) {
      EXPECT_EQ(y[t * p.y_stride + j] != kUntouched, j >= 32 && j < 64) << t << " " << j;
    }
  }
}

// A plain fp32 matrix [n, k].
MatrixView PlainF32(const std::vector<float>& w, int n, int k) {
  return {.n = n,
          .k = k,
          .code = WeightCode::kF32,
          .codes = reinterpret_cast<const uint8_t*>(w.data()),
          .code_row_stride = int64_t{4} * k};
}

TEST_P(Int8GemmTest, TheLargestSumsFit) {
  constexpr int kTokens = 3, kRows = 2;
  const std::vector<float> x(size_t{kTokens} * kInt8XColumnsMax, -1.0f);
  std::vector<float> w(size_t{kRows} * kInt8XColumnsMax, -1.0f);
  std::fill(w.begin() + kInt8XColumnsMax, w.end(), 1.0f);
  const PackedInt8 packed(PlainF32(w, kRows, kInt8XColumnsMax), code());
  const RowsCopy rows(code(), false, x.data(), kInt8XColumnsMax, kTokens, kInt8XColumnsMax);
  float y[kTokens][kRows];
  Int8Gemm(kernels(), {rows.rows, kTokens, packed.matrix, y[0], kRows}, 0, 1);
  for (const auto& row : y) {
    EXPECT_FLOAT_EQ(row[0], kInt8XColumnsMax);
    EXPECT_FLOAT_EQ(row[1], -kInt8XColumnsMax);
  }
}

TEST_P(Int8GemmTest, RowsThatAreNotFiniteGiveNanAndNoOthersDo) {
  constexpr int kTokens = 5, kRows = 20, kColumns = 33;
  std::vector<float> x(kTokens * kColumns, 0.5f), w(kRows * kColumns, 0.25f);
  x[2 * kColumns + 7] = std::numeric_limits<float>::infinity();
  w[17 * kColumns + 30] = std::numeric_limits<float>::quiet_NaN();
  std::fill(x.begin() + 4 * kColumns, x.end(), 0.0f);
  const PackedInt8 packed(PlainF32(w, kRows, kColumns), code());
  EXPECT_FALSE(packed.numbers);
  const RowsCopy rows(code(), false, x.data(), kColumns, kTokens, kColumns);
  float y[kTokens][kRows];
  Int8Gemm(kernels(), {rows.rows, kTokens, packed.matrix, y[0], kRows}, 0, 2);
  for (int t = 0; t < kTokens; ++t) {
    for (int j = 0; j < kRows; ++j) {
      if (t == 2 || j == 17) {
        EXPECT_TRUE(std::isnan(y[t][j])) << t << " " << j;
      } else {
        EXPECT_FLOAT_EQ(y[t][j], t == 4 ? 0 : kColumns * 0.125f) << t << " " << j;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, Int8GemmTest,
                         testing::Combine(testing::ValuesIn(kAllIsas),
                                          testing::Values(PackedCode::kInt8, PackedCode::kInt4)),
                         [](const auto& info) {
                           return std::string(IsaName(std::get<0>(info.param))) + "_" +
                                  NameOf(std::get<1>(info.param));
                         });

class PackInt8Test : public testing::TestWithParam<PackedCode> {};

TEST_P(PackInt8Test, RowsReadBackAsTheDefinitionRoundsThem) {
  std::mt19937 rng(20240703);
  for (const MatrixSpec& spec : kMatrixSpecs) {
    RandomMatrix random(rng, spec, 37, 75);
    const PackedInt8 packed(random.view(), GetParam());
    EXPECT_TRUE(packed.numbers);
    std::vector<float> row(75);
    for (int r = 0; r < 37; ++r) {
      const Rounded expected = RoundedRow(random.view(), GetParam(), r);
      UnpackRow(packed.matrix, r, row.data());
      for (int c = 0; c < 75; ++c)
        ASSERT_EQ(row[c], static_cast<float>(expected.codes[c]) * expected.scale) << spec.name;
    }
  }
}

TEST_P(PackInt8Test, ASliceOfColumnsHasItsOwnScales) {
  std::vector<float> w(32, 1.0f);
  w[31] = 100.0f;
  const MatrixView view = PlainF32(w, 1, 32);
  for (auto [begin, end, largest] : {std::tuple{0, 16, 1.0f}, std::tuple{16, 32, 100.0f}}) {
    const PackedInt8 packed(view.Columns(begin, end), GetParam());
    float row[16];
    UnpackRow(packed.matrix, 0, row);
    EXPECT_FLOAT_EQ(*std::max_element(row, row + 16), largest);
  }
}

TEST_P(PackInt8Test, TileRangesPackSeparately) {
  std::mt19937 rng(20240704);
  RandomMatrix random(rng, kMatrixSpecs[0], 75, 133);
  const PackedInt8 whole(random.view(), GetParam());
  const PackedFormat& format = whole.matrix.format;
  std::vector<uint8_t> parts(whole.bytes.size(), 0xff);
  EXPECT_TRUE(Pack(random.view(), format, 3, 5, parts.data()));
  EXPECT_EQ(std::count(parts.begin(), parts.begin() + 3 * PackedTileBytes(133, format), 0xff),
            static_cast<int64_t>(3 * PackedTileBytes(133, format)));
  EXPECT_TRUE(Pack(random.view(), format, 0, 3, parts.data()));
  EXPECT_EQ(parts, whole.bytes);
}

INSTANTIATE_TEST_SUITE_P(Codes, PackInt8Test, testing::Values(PackedCode::kInt8, PackedCode::kInt4),
                         [](const auto& info) { return NameOf(info.param); });

// Row 17 of a matrix [18, 72], by hand: codes, the scale behind them, and the offset of zero.
TEST(PackInt8LayoutTest, ElementsLieWhereTheFormatSays) {
  std::vector<float> w(18 * 72, 0.0f);
  w[17 * 72 + 70] = 127.0f;
  w[17 * 72 + 69] = -63.5f;  // a tie: to even
  const PackedInt8 int8(PlainF32(w, 18, 72), PackedCode::kInt8);
  const uint8_t* tile = int8.bytes.data() + (72 / 4 * 64 + 64);
  const uint8_t* unit = tile + 70 / 4 * 64;
  EXPECT_EQ(unit[1 * 4 + 70 % 4], 128 + 127);
  EXPECT_EQ(unit[1 * 4 + 69 % 4], 128 - 64);
  EXPECT_EQ(unit[1 * 4 + 0], 128);
  float scale;
  std::memcpy(&scale, tile + 72 / 4 * 64 + 1 * 4, sizeof scale);
  EXPECT_EQ(scale, 1.0f);

  w[17 * 72 + 70] = 112.0f;
  w[17 * 72 + 69] = -56.0f;  // -3.5 steps: away from zero
  const PackedInt8 int4(PlainF32(w, 18, 72), PackedCode::kInt4);
  tile = int4.bytes.data() + (72 / 8 * 64 + 64);
  unit = tile + 70 / 8 * 64 + 1 * 4;
  EXPECT_EQ(unit[1], (8 + 7) << 4 | 8) << "columns 4 and 6";
  EXPECT_EQ(unit[3], 8 << 4 | (8 - 4)) << "columns 5 and 7";
  std::memcpy(&scale, tile + 72 / 8 * 64 + 1 * 4, sizeof scale);
  EXPECT_EQ(scale, 16.0f);
}

}  // namespace
}  // namespace kt
