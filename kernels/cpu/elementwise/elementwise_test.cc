// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/simd/testing.h"

namespace kt {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float Round(float x, bool is_bf16) { return is_bf16 ? RoundToBf16(x) : x; }

TEST(ElementwiseTest, AdditionAndConversionAreExactInEveryRowOfTheTable) {
  TestRandom random(61);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 150; ++trial) {
      const int rows = random.Int(0, 4), n = random.Int(1, 150), num_parts = random.Int(1, 5),
                total = rows * n;
      const bool is_bf16 = trial % 2 == 0;
      const Activations before(random.Normals(total), is_bf16);
      Activations summed = before;
      std::vector<std::vector<float>> values;
      std::vector<const float*> parts;
      for (int p = 0; p < num_parts; ++p) values.push_back(random.Normals(total));
      for (const auto& v : values) parts.push_back(v.data());
      const int cut = random.Int(0, total);
      AddParts(isa, {summed.data(), parts.data(), num_parts, 0, cut, is_bf16});
      AddParts(isa, {summed.data(), parts.data(), num_parts, cut, total, is_bf16});
      const std::vector<float> bias = random.Normals(n);
      const int64_t out_stride = n + random.Int(0, 3);
      Activations biased(rows * out_stride, is_bf16), plain(rows * out_stride, is_bf16);
      Convert(isa, {values[0].data(), n, bias.data(), biased.data(), out_stride, rows, n, is_bf16});
      Convert(isa, {values[0].data(), n, nullptr, plain.data(), out_stride, rows, n, is_bf16});
      for (int i = 0; i < total; ++i) {
        float sum = values[0][i];
        for (int p = 1; p < num_parts; ++p) sum += values[p][i];
        ASSERT_EQ(summed.At(i), Round(before.At(i) + sum, is_bf16));
        ASSERT_EQ(biased.At(i / n * out_stride + i % n),
                  Round(values[0][i] + bias[i % n], is_bf16));
        ASSERT_EQ(plain.At(i / n * out_stride + i % n), Round(values[0][i], is_bf16));
      }
    }
  }
}

TEST(ElementwiseTest, GluEqualsTheReference) {
  TestRandom random(62);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 150; ++trial) {
      const int rows = random.Int(0, 4), n = random.Int(1, 150);
      const bool is_bf16 = trial % 2 == 0;
      const int64_t stride = 2 * n;
      const std::vector<float> gate_up = random.Normals(rows * stride, trial % 3 ? 3 : 40);
      Activations out(rows * n, is_bf16);
      GluParams params;
      if (trial % 5 == 1) params.limit = 7;
      if (trial % 5 == 2) params = {1.702f, 7, 1};
      Glu(isa,
          {params, gate_up.data(), gate_up.data() + n, stride, out.data(), n, rows, n, is_bf16});
      for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < n; ++i) {
          const double limit = params.limit, g = std::min<double>(gate_up[r * stride + i], limit);
          const double clamped = std::clamp<double>(gate_up[r * stride + n + i], -limit, limit);
          const double u = clamped + params.up_offset,
                       want = g / (1 + std::exp(-g * params.alpha)) * u;
          // e^-g is off by 2 units; below e^-86 it saturates, where the result is not worth a
          // normal number.
          ASSERT_NEAR(
              out.At(r * n + i), want,
              std::abs(want) * (ActivationEpsilon(is_bf16) + 64 * 0x1p-23) + 1e-34 * std::abs(u))
              << g;
        }
      }
    }
  }
}

TEST(ElementwiseTest, GatesEqualTheReference) {
  TestRandom random(63);
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 100; ++trial) {
      const int rows = random.Int(0, 4), n = random.Int(1, 150);
      const bool is_bf16 = trial % 2 == 0;
      const int64_t x_stride = n + random.Int(0, 3), gate_stride = 2 * n;
      const Activations before(random.Normals(rows * x_stride), is_bf16);
      const Activations gate(random.Normals(rows * gate_stride), is_bf16);
      Activations x = before;
      SigmoidMul(isa, {x.data(), x_stride, gate.data(), gate_stride, rows, n, is_bf16});
      const std::vector<float> y_before = random.Normals(rows * n), gates = random.Normals(rows);
      std::vector<float> y = y_before;
      ScaleRows(isa, {y.data(), n, gates.data(), rows, n});
      for (int row = 0; row < rows; ++row) {
        for (int i = 0; i < n; ++i) {
          const double expected =
              before.At(row * x_stride + i) * sigmoid(gate.At(row * gate_stride + i));
          ASSERT_NEAR(x.At(row * x_stride + i), expected,
                      std::abs(expected) * (is_bf16 ? 1.0 / 256 : 1e-6) + 1e-30);
          const double scaled = y_before[row * n + i] * sigmoid(gates[row]);
          ASSERT_NEAR(y[row * n + i], scaled, std::abs(scaled) * 1e-6 + 1e-30);
        }
        for (int64_t i = n; i < x_stride; ++i)
          ASSERT_EQ(x.At(row * x_stride + i), before.At(row * x_stride + i));
      }
    }
  }
}

TEST(ElementwiseTest, ExtremeValuesKeepTheirMeaning) {
  const std::vector<float> gate = {kNan, kInf, -kInf, 1e30f, -1e30f, 100, -100, 0, -0.0f};
  const std::vector<float> one(gate.size(), 1.0f);
  for (Isa isa : RunnableIsas()) {
    Activations out(gate.size(), true), converted(gate.size(), true);
    Glu(isa,
        {{}, gate.data(), one.data(), 0, out.data(), 0, 1, static_cast<int>(gate.size()), true});
    EXPECT_TRUE(std::isnan(out.At(0)));
    EXPECT_EQ(out.At(1), kInf);
    EXPECT_EQ(out.At(3), RoundToBf16(1e30f));
    EXPECT_EQ(out.At(4), 0);
    EXPECT_EQ(out.At(5), 100);
    EXPECT_NEAR(out.At(6), 0, 1e-34);
    EXPECT_EQ(out.At(7), 0);
    Convert(isa,
            {gate.data(), 0, nullptr, converted.data(), 0, 1, static_cast<int>(gate.size()), true});
    EXPECT_TRUE(std::isnan(converted.At(0)));
    for (size_t i = 1; i < gate.size(); ++i) EXPECT_EQ(converted.At(i), RoundToBf16(gate[i]));
  }
}

}  // namespace
}  // namespace kt
