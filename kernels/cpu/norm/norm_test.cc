// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/norm/norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/simd/testing.h"

namespace kt {
namespace {

TEST(RmsNormTest, EveryRowOfTheTableEqualsTheReference) {
  TestRandom random(11);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 150; ++trial) {
      int rows = random.Int(0, 5), groups = random.Int(1, 4), n = random.Int(1, 700);
      int64_t x_stride = int64_t{groups} * n + random.Int(0, 9),
              y_stride = int64_t{groups} * n + random.Int(0, 9);
      bool is_bf16 = trial % 2 == 0;
      float sigma = std::pow(10.0f, static_cast<float>(random.Int(-3, 3)));
      Activations x(random.Normals(rows * x_stride, sigma), is_bf16), y(rows * y_stride, is_bf16);
      std::vector<float> weight = random.Normals(n);
      RmsNorm(isa, {x.data(), x_stride, y.data(), y_stride, weight.data(), rows, groups, n, 1e-6f,
                    is_bf16});
      for (int r = 0; r < rows; ++r) {
        for (int g = 0; g < groups; ++g) {
          double sum = 0;
          for (int i = 0; i < n; ++i) sum += std::pow(x.At(r * x_stride + g * n + i), 2.0);
          double scale = 1 / std::sqrt(sum / n + 1e-6f);
          for (int i = 0; i < n; ++i) {
            double want = x.At(r * x_stride + g * n + i) * scale * weight[i];
            // A sum of n rounded terms in at least 4 chains, three roundings after it, one to the
            // activation type.
            double tolerance =
                std::abs(want) * (ActivationEpsilon(is_bf16) + (n / 4 + 8) * 0x1p-24);
            ASSERT_NEAR(y.At(r * y_stride + g * n + i), want, tolerance)
                << "isa " << int(isa) << " n " << n << " i " << i;
          }
        }
      }
    }
  }
}

TEST(RmsNormTest, ARowDependsOnItselfOnlyAndMayBeInPlace) {
  TestRandom random(12);
  for (Isa isa : RunnableIsas()) {
    for (bool is_bf16 : {false, true}) {
      const int rows = 7, n = 83;
      std::vector<float> values = random.Normals(rows * n), weight = random.Normals(n);
      values[3 * n + 5] = std::numeric_limits<float>::quiet_NaN();
      values[4 * n] = std::numeric_limits<float>::infinity();
      Activations x(values, is_bf16), whole(values, is_bf16), alone(values, is_bf16);
      RmsNorm(isa, {x.data(), n, whole.data(), n, weight.data(), rows, 1, n, 1e-5f, is_bf16});
      for (int r = rows - 1; r >= 0; --r) {
        RmsNorm(isa,
                {alone.at(r * n), n, alone.at(r * n), n, weight.data(), 1, 1, n, 1e-5f, is_bf16});
      }
      EXPECT_TRUE(whole == alone);
      EXPECT_TRUE(std::isnan(whole.At(3 * n)));
      EXPECT_TRUE(std::isnan(whole.At(4 * n)));
      EXPECT_TRUE(std::isfinite(whole.At(5 * n)));
    }
  }
}

TEST(LayerNormTest, EveryRowOfTheTableEqualsTheReference) {
  TestRandom random(13);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 150; ++trial) {
      const int rows = random.Int(0, 5), n = random.Int(1, 300);
      const int64_t x_stride = n + random.Int(0, 9), y_stride = n + random.Int(0, 9);
      const bool is_bf16 = trial % 2 == 0;
      const float eps = 1e-6f, shift = random.Normal(3);
      std::vector<float> values = random.Normals(rows * x_stride);
      for (float& x : values) x += shift;
      const Activations x(values, is_bf16);
      Activations y(rows * y_stride, is_bf16);
      const std::vector<float> weight = random.Normals(n), bias = random.Normals(n);
      LayerNorm(isa, {x.data(), x_stride, y.data(), y_stride, weight.data(), bias.data(), rows, n,
                      eps, is_bf16});
      for (int r = 0; r < rows; ++r) {
        double mean = 0, largest = 0, variance = 0;
        for (int i = 0; i < n; ++i) {
          mean += double(x.At(r * x_stride + i)) / n;
          largest = std::max(largest, std::abs(double(x.At(r * x_stride + i))));
        }
        for (int i = 0; i < n; ++i) variance += std::pow(x.At(r * x_stride + i) - mean, 2) / n;
        const double scale = 1 / std::sqrt(variance + eps);
        for (int i = 0; i < n; ++i) {
          const double term = (x.At(r * x_stride + i) - mean) * scale * weight[i];
          const double want = term + bias[i];
          // The mean is off by a sum's roundings of the largest value; it moves every difference,
          // and, squared, the variance.
          const double off = largest * (n / 4 + 4) * 0x1p-24;
          const double tolerance = std::abs(want) * ActivationEpsilon(is_bf16) +
                                   (std::abs(term) + std::abs(bias[i])) * (n / 4 + 8) * 0x1p-24 +
                                   2 * off * scale * std::abs(weight[i]) +
                                   off * off * scale * scale * std::abs(term);
          ASSERT_NEAR(y.At(r * y_stride + i), want, tolerance)
              << "isa " << int(isa) << " n " << n << " i " << i;
        }
      }
    }
  }
}

TEST(LayerNormTest, ARowDependsOnItselfOnlyAndMayBeInPlace) {
  TestRandom random(14);
  for (Isa isa : RunnableIsas()) {
    for (bool is_bf16 : {false, true}) {
      const int rows = 7, n = 83;
      std::vector<float> values = random.Normals(rows * n), weight = random.Normals(n),
                         bias = random.Normals(n);
      values[3 * n + 5] = std::numeric_limits<float>::quiet_NaN();
      const Activations x(values, is_bf16);
      Activations whole(rows * n, is_bf16), alone = x;
      LayerNorm(
          isa, {x.data(), n, whole.data(), n, weight.data(), bias.data(), rows, n, 1e-5f, is_bf16});
      for (int r = rows - 1; r >= 0; --r) {
        LayerNorm(isa, {alone.at(r * n), n, alone.at(r * n), n, weight.data(), bias.data(), 1, n,
                        1e-5f, is_bf16});
      }
      EXPECT_TRUE(whole == alone);
      EXPECT_TRUE(std::isnan(whole.At(3 * n)));
      EXPECT_TRUE(std::isfinite(whole.At(4 * n)));
    }
  }
}

}  // namespace
}  // namespace kt
