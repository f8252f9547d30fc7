// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/aligned_buffer.h"
#include "kernels/cpu/gemm/gemm_isa.h"
#include "kernels/cpu/gemm/testing/kernel_testing.h"
#include "kernels/cpu/gemm/testing/random_matrix.h"

namespace kt {
namespace {

// A product with x in both types. Rows of x and y lie further apart than they are long, at odd
// distances.
struct Problem {
  Problem(std::mt19937& rng, int tokens, int n, int k, const MatrixSpec& spec = kMatrixSpecs[0],
          bool exact = true)
      : tokens(tokens),
        n(n),
        k(k),
        x_stride(k + 3),
        y_stride(n + 5),
        x(RandomBf16(rng, tokens * x_stride)),
        w(rng, spec, n, k),
        packed(w.view(), exact) {
    x_f32.resize(x.size());
    std::uniform_real_distribution<float> noise(-1e-3f, 1e-3f);
    for (size_t i = 0; i < x.size(); ++i) x_f32[i] = ToFloat(x[i]) + noise(rng);
  }

  GemmArgs Args(bool bf16_x, float* y) const {
    const void* rows = bf16_x ? static_cast<const void*>(x.data()) : x_f32.data();
    return {rows, x_stride, tokens, packed.matrix, y, y_stride};
  }

  std::vector<float> Run(const GemmKernels& kernels, bool bf16_x) const {
    std::vector<float> y(tokens * y_stride, kUntouched);
    Gemm(kernels, bf16_x, Args(bf16_x, y.data()), 0, Tiles(n));
    return y;
  }

  static constexpr float kUntouched = 12345.0f;
  int tokens, n, k;
  int64_t x_stride, y_stride;
  std::vector<bf16> x;
  std::vector<float> x_f32;
  RandomMatrix w;
  PackedCopy packed;
};

// |error| of a sum of k products is at most k eps sum |x w| for any order of rounding, scaling and
// adding up blocks included; flushed subnormals add less than the smallest normal each.
void ExpectClose(const Problem& p, bool bf16_x, const std::vector<float>& y) {
  const PackedFormat& format = p.packed.matrix.format;
  std::vector<double> w(p.k);
  for (int j = 0; j < p.n; ++j) {
    for (int c = 0; c < p.k; ++c) w[c] = PackedValue(p.w.view(), format, j, c);
    for (int t = 0; t < p.tokens; ++t) {
      double sum = 0, magnitude = 0;
      for (int c = 0; c < p.k; ++c) {
        const double x = bf16_x ? ToFloat(p.x[t * p.x_stride + c]) : p.x_f32[t * p.x_stride + c];
        sum += x * w[c];
        magnitude += std::abs(x * w[c]);
      }
      const double eps = std::numeric_limits<float>::epsilon() / 2;
      const int additions = (format.code == PackedCode::kBf16x2 ? 2 : 1) * p.k + 4 +
                            (format.lanes != 0 ? 2 * PackedGroups(p.k, format) + p.k / 64 : 0);
      ASSERT_NEAR(y[t * p.y_stride + j], sum,
                  additions * (eps * magnitude + std::numeric_limits<float>::min()) +
                      PackedError(format) * magnitude)
          << "token " << t << " column " << j << " of " << p.tokens << "x" << p.n << "x" << p.k;
    }
  }
  for (int t = 0; t < p.tokens; ++t) {
    for (int64_t j = p.n; j < p.y_stride; ++j)
      ASSERT_EQ(y[t * p.y_stride + j], Problem::kUntouched);
  }
}

// Every row computed alone, over random tile ranges, has the bits it has in the batch.
void ExpectSameBitsAlone(std::mt19937& rng, const Problem& p, const GemmKernels& kernels,
                         bool bf16_x) {
  const std::vector<float> batch = p.Run(kernels, bf16_x);
  std::vector<float> alone(p.y_stride, Problem::kUntouched);
  for (int t = 0; t < p.tokens; t += 1 + p.tokens / 8) {
    GemmArgs args = p.Args(bf16_x, alone.data());
    args.x = static_cast<const char*>(args.x) + t * p.x_stride * (bf16_x ? 2 : 4);
    args.tokens = 1;
    for (int tile = 0; tile < Tiles(p.n);) {
      int end = std::min(Tiles(p.n), tile + std::uniform_int_distribution<int>(1, 7)(rng));
      Gemm(kernels, bf16_x, args, tile, end);
      tile = end;
    }
    ASSERT_EQ(
        std::memcmp(alone.data(), batch.data() + t * p.y_stride, alone.size() * sizeof(float)), 0)
        << "token " << t << " of " << p.tokens << "x" << p.n << "x" << p.k
        << (bf16_x ? " bf16" : " f32");
  }
}

// A row of the table, or oneDNN throughout.
struct Row {
  const char* name;
  Isa isa;
  bool onednn = false;
  OneDnnPanel panel{};

  bool runs() const {
    return onednn ? OneDnnReady(panel).ok()
                  : CanRun(isa) && (isa != Isa::kAmx || GemmReady(isa).ok());
  }
  std::string Why() const {
    return onednn ? std::string(OneDnnReady(panel).message())
                  : fmt::format("this CPU cannot run {}", name);
  }
  GemmKernels kernels() const { return onednn ? OneDnnGemm(panel) : SelectGemm(isa); }
  bool invariant() const { return onednn || BatchInvariant(isa); }
  std::vector<bool> types_of_x() const {  // bf16?
    return onednn && panel == OneDnnPanel::kBf16 ? std::vector<bool>{true}
                                                 : std::vector<bool>{true, false};
  }
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.name; }
constexpr Row kRows[] = {{"scalar", Isa::kScalar},
                         {"avx2", Isa::kAvx2},
                         {"avx512f", Isa::kAvx512f},
                         {"avx512bf16", Isa::kAvx512Bf16},
                         {"amx", Isa::kAmx},
                         {"onednn_f32", Isa::kAvx2, true, OneDnnPanel::kF32},
                         {"onednn_bf16", Isa::kAvx512Bf16, true, OneDnnPanel::kBf16}};

constexpr char kNotInvariant[] = "few tokens and many have different bits in this row";

class GemmTest : public testing::TestWithParam<Row> {
 protected:
  void SetUp() override {
    if (!GetParam().runs()) GTEST_SKIP() << "NOT TESTED: " << GetParam().Why();
  }
  GemmKernels kernels() const { return GetParam().kernels(); }
  std::mt19937 rng_{20240607};
};

TEST_P(GemmTest, OddShapesMatchTheExactProduct) {
  std::uniform_int_distribution<int> tokens(1, 20), n(1, 150), k(1, 260);
  for (int i = 0; i < 120; ++i) {
    Problem p(rng_, tokens(rng_), n(rng_), k(rng_));
    for (bool bf16_x : GetParam().types_of_x()) ExpectClose(p, bf16_x, p.Run(kernels(), bf16_x));
  }
}

TEST_P(GemmTest, LongRowsAreSummedInBlocks) {
  for (auto [tokens, n, k] :
       {std::array{1, 33, 9001}, std::array{2, 17, 8193}, std::array{13, 40, 3001}}) {
    Problem p(rng_, tokens, n, k);
    for (bool bf16_x : GetParam().types_of_x()) ExpectClose(p, bf16_x, p.Run(kernels(), bf16_x));
  }
}

TEST_P(GemmTest, RowAloneHasTheBitsItHasInABatchAndInAnyTileRange) {
  if (!GetParam().invariant()) GTEST_SKIP() << kNotInvariant;
  std::uniform_int_distribution<int> tokens(1, 70), n(1, 300), k(1, 3000);
  for (int i = 0; i < 12; ++i) {
    Problem p(rng_, i == 0 ? 600 : tokens(rng_), i == 0 ? 90 : n(rng_), k(rng_));
    for (bool bf16_x : GetParam().types_of_x()) ExpectSameBitsAlone(rng_, p, kernels(), bf16_x);
  }
}

TEST_P(GemmTest, E8m0ScalesReachFromSubnormalToNan) {
  const std::vector<uint8_t> ones(16 * 16, 0x22), scales = {127, 0, 1, 254, 255};
  MatrixView v{.n = 5, .k = 32, .code = WeightCode::kFp4E2m1, .scale = ScaleType::kE8m0};
  v.block_columns = 32;
  v.codes = ones.data();
  v.code_row_stride = 16;
  v.scales = scales.data();
  v.scale_row_stride = 1;
  PackedCopy packed(v, true);
  const std::vector<float> x(32, 0.25f);
  const std::vector<bf16> x_bf16(32, ToBf16(0.25f));
  for (bool bf16_x : GetParam().types_of_x()) {
    const void* rows = bf16_x ? static_cast<const void*>(x_bf16.data()) : x.data();
    float y[5];
    Gemm(kernels(), bf16_x, {rows, 32, 1, packed.matrix, y, 5}, 0, 1);
    EXPECT_EQ(y[0], 8);
    EXPECT_EQ(y[1], std::ldexp(8.0f, -127));
    EXPECT_EQ(y[2], std::ldexp(8.0f, -126));
    EXPECT_EQ(y[3], std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isnan(y[4]));
  }
}

TEST_P(GemmTest, TileRangeWritesItsColumnsOnly) {
  Problem p(rng_, 9, 100, 64);
  std::vector<float> y(p.tokens * p.y_stride, Problem::kUntouched);
  Gemm(kernels(), true, p.Args(true, y.data()), 2, 4);
  for (int t = 0; t < p.tokens; ++t) {
    for (int64_t j = 0; j < p.y_stride; ++j) {
      EXPECT_EQ(y[t * p.y_stride + j] != Problem::kUntouched, j >= 32 && j < 64) << t << " " << j;
    }
  }
}

TEST_P(GemmTest, NoTokensNoOutput) {
  Problem p(rng_, 1, 16, 8);
  GemmArgs args = p.Args(true, nullptr);
  args.tokens = 0;
  for (bool bf16_x : GetParam().types_of_x()) Gemm(kernels(), bf16_x, args, 0, 1);
}

TEST_P(GemmTest, LinearParallelHasTheBitsOfOneCall) {
  if (!GetParam().invariant()) GTEST_SKIP() << kNotInvariant;
  for (auto [tokens, n, k] : {std::array{1, 1000, 128}, std::array{300, 20, 64},
                              std::array{130, 260, 48}, std::array{5, 7, 3}}) {
    Problem p(rng_, tokens, n, k);
    for (int threads : {1, 2, 7}) {
      Threads parallel(threads);
      for (bool bf16_x : GetParam().types_of_x()) {
        std::vector<float> y(p.tokens * p.y_stride, Problem::kUntouched);
        LinearParallel(kernels(), bf16_x, p.Args(bf16_x, y.data()), parallel);
        EXPECT_EQ(y, p.Run(kernels(), bf16_x))
            << tokens << "x" << n << "x" << k << " threads " << threads;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, GemmTest, testing::ValuesIn(kRows),
                         [](const auto& info) { return info.param.name; });

class GemmFormatTest : public testing::TestWithParam<std::tuple<Row, MatrixSpec>> {
 protected:
  void SetUp() override {
    if (!row().runs()) GTEST_SKIP() << "NOT TESTED: " << row().Why();
  }
  const Row& row() const { return std::get<0>(GetParam()); }
  const MatrixSpec& spec() const { return std::get<1>(GetParam()); }
  GemmKernels kernels() const { return row().kernels(); }
  std::mt19937 rng_{20240612};
};

TEST_P(GemmFormatTest, OddShapesMatchTheExactProduct) {
  std::uniform_int_distribution<int> tokens(1, 20), n(1, 90), k(1, 400);
  for (int i = 0; i < 20; ++i) {
    Problem p(rng_, i == 0 ? 70 : tokens(rng_), n(rng_), k(rng_), spec(), i % 2 == 0);
    for (bool bf16_x : row().types_of_x()) ExpectClose(p, bf16_x, p.Run(kernels(), bf16_x));
  }
}

TEST_P(GemmFormatTest, RowAloneHasTheBitsItHasInABatchAndInAnyTileRange) {
  if (!row().invariant()) GTEST_SKIP() << kNotInvariant;
  std::uniform_int_distribution<int> tokens(1, 70), n(1, 300), k(1, 700);
  for (int i = 0; i < 4; ++i) {
    Problem p(rng_, i == 0 ? 600 : tokens(rng_), i == 0 ? 35 : n(rng_), k(rng_), spec(), true);
    for (bool bf16_x : row().types_of_x()) ExpectSameBitsAlone(rng_, p, kernels(), bf16_x);
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, GemmFormatTest,
                         testing::Combine(testing::ValuesIn(kRows),
                                          testing::ValuesIn(kMatrixSpecs)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::get<1>(info.param).name;
                         });

// Panels for other kernels: every code of a unit that products can meet, as a number.
class GemmDecodeTest : public testing::TestWithParam<Isa> {};

TEST_P(GemmDecodeTest, UnitsBecomeTheNumbersOfTheirCodes) {
  if (!CanRun(GetParam())) GTEST_SKIP() << "NOT TESTED: the CPU lacks " << IsaName(GetParam());
  struct Code {
    PackedCode code;
    WeightCode number;
    DecodeFn avx2, avx512bf16;
  };
  const Code codes[] = {
      {PackedCode::kBf16, WeightCode::kBf16, &avx2::DecodeBf16, &avx512bf16::DecodeBf16},
      {PackedCode::kFp8E4m3, WeightCode::kFp8E4m3, &avx2::DecodeFp8E4m3,
       &avx512bf16::DecodeFp8E4m3},
      {PackedCode::kInt8, WeightCode::kInt8, &avx2::DecodeInt8, &avx512bf16::DecodeInt8},
      {PackedCode::kInt4, WeightCode::kInt4, &avx2::DecodeInt4, &avx512bf16::DecodeInt4},
      {PackedCode::kFp4E2m1, WeightCode::kFp4E2m1, &avx2::DecodeFp4E2m1,
       &avx512bf16::DecodeFp4E2m1}};
  const bool fp32 = GetParam() == Isa::kAvx2;
  const int step_columns = fp32 ? 1 : 2;
  constexpr int kUnits = 9, kStepBytes = 3 * kUnitBytes;
  std::mt19937 rng(20240613);
  for (const Code& c : codes) {
    alignas(64) uint8_t units[kUnits * kUnitBytes];
    for (size_t i = 0; i < sizeof units; ++i) {  // all bytes occur
      units[i] = static_cast<uint8_t>(i < 256 ? i : rng());
      if (c.code == PackedCode::kFp8E4m3 && (units[i] & 0x7f) == 0x7f) units[i] = 0x80;
      if (c.code == PackedCode::kBf16 && i % 2 == 1) units[i] = (units[i] & 0x80) | 0x3f;
    }
    const int unit_columns = UnitColumns(c.code), steps = kUnits * unit_columns / step_columns;
    AlignedBuffer out(size_t(steps) * kStepBytes);
    std::fill_n(out.data(), out.size(), uint8_t{0xee});
    (fp32 ? c.avx2 : c.avx512bf16)(units, kUnits, out.data(), kStepBytes);
    for (int column = 0; column < kUnits * unit_columns; ++column) {
      for (int row = 0; row < kTileRows; ++row) {
        const UnitPlace place = PlaceInUnit(c.code, row, column % unit_columns);
        const uint8_t* unit = units + column / unit_columns * kUnitBytes;
        const uint8_t* step = out.data() + column / step_columns * kStepBytes;
        float number;
        bf16 narrow;
        std::memcpy(&number, step + (fp32 ? row : 0) * sizeof number, sizeof number);
        std::memcpy(&narrow, step + (2 * row + column % 2) * sizeof narrow, sizeof narrow);
        ASSERT_EQ(fp32 ? number : ToFloat(narrow),
                  CodeValue(c.number, unit + place.byte, place.high))
            << "code " << static_cast<int>(c.code) << " row " << row << " column " << column;
      }
    }
    for (int step = 0; step < steps; ++step)
      ASSERT_EQ(out.data()[step * kStepBytes + kUnitBytes], 0xee) << "beyond a step";
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, GemmDecodeTest, testing::Values(Isa::kAvx2, Isa::kAvx512Bf16),
                         [](const auto& info) { return IsaName(info.param); });

}  // namespace
}  // namespace kt
