// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/quantize_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace kt {
namespace {

// The rule, one element at a time.
struct Expected {
  Expected(const std::vector<float>& x, int levels) : codes(x.size()) {
    float amax = 0;
    for (float v : x) amax = std::max(amax, std::abs(v));
    scale = static_cast<float>(double{amax} / levels);
    const float reciprocal = scale == 0 ? 0 : 1 / scale;
    for (size_t i = 0; i < x.size(); ++i)
      codes[i] = static_cast<int>(std::nearbyint(x[i] * reciprocal));
  }
  float scale;
  std::vector<int> codes;
};

void ExpectRule(const std::vector<float>& x, int levels) {
  const int k = static_cast<int>(x.size());
  const Expected expected(x, levels);
  std::vector<int8_t> codes(k + 1, 77);
  EXPECT_EQ(QuantizeRow(x.data(), k, levels, codes.data()), expected.scale);
  for (int i = 0; i < k; ++i) ASSERT_EQ(codes[i], expected.codes[i]) << i << " of " << k;
  EXPECT_EQ(codes[k], 77) << "nothing behind the row is written";
}

TEST(QuantizeRowTest, RandomRowsOfAllLengthsFollowTheRule) {
  std::mt19937 rng(7);
  for (int k = 1; k < 200; ++k) {
    std::normal_distribution<float> normal(0,
                                           std::ldexp(1.0f, static_cast<int>(rng() % 200) - 100));
    std::vector<float> x(k);
    for (float& v : x) v = normal(rng);
    for (int levels : {127, 112}) ExpectRule(x, levels);
    std::vector<bf16> narrow(k);
    for (int i = 0; i < k; ++i) {
      narrow[i] = ToBf16(x[i]);
      x[i] = ToFloat(narrow[i]);
    }
    std::vector<int8_t> codes(k), same(k);
    EXPECT_EQ(QuantizeRow(narrow.data(), k, 127, codes.data()),
              QuantizeRow(x.data(), k, 127, same.data()));
    EXPECT_EQ(codes, same);
  }
}

TEST(QuantizeRowTest, TiesGoToEvenAndTheLargestMagnitudeToTheLastLevel) {
  const std::vector<float> x = {127, -127, 0.5f, 1.5f, -0.5f, -1.5f, 2.5f, 126.5f, 0, -0.0f};
  std::vector<int8_t> codes(x.size());
  EXPECT_EQ(QuantizeRow(x.data(), static_cast<int>(x.size()), 127, codes.data()), 1);
  EXPECT_EQ(codes, (std::vector<int8_t>{127, -127, 0, 2, 0, -2, 2, 126, 0, 0}));
}

TEST(QuantizeRowTest, RowsWithoutAReciprocalAreZero) {
  for (float amax : {0.0f, 1e-45f, 1e-38f}) {
    const std::vector<float> x = {amax, -amax, 0};
    std::vector<int8_t> codes(3, 5);
    EXPECT_EQ(QuantizeRow(x.data(), 3, 127, codes.data()), 0) << amax;
    EXPECT_EQ(codes, std::vector<int8_t>(3, 0));
  }
  ExpectRule({5e-37f, -1e-37f, 2e-37f}, 127);  // its scale is above 2^-128
}

TEST(QuantizeRowTest, TheLargestNumbersAreRounded) {
  constexpr float kMax = std::numeric_limits<float>::max();
  ExpectRule({kMax, -kMax, kMax / 2}, 127);
}

TEST(QuantizeRowTest, NanAndInfinityMakeTheScaleNan) {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (int at : {0, 5, 15, 16, 18}) {
      std::vector<float> x(19, 1.0f);
      x[at] = bad;
      std::vector<int8_t> codes(19, 5);
      EXPECT_TRUE(std::isnan(QuantizeRow(x.data(), 19, 127, codes.data()))) << bad << " at " << at;
      EXPECT_EQ(codes, std::vector<int8_t>(19, 0));
      std::vector<bf16> narrow(19, ToBf16(1.0f));
      narrow[at] = ToBf16(bad);
      EXPECT_TRUE(std::isnan(QuantizeRow(narrow.data(), 19, 127, codes.data())));
    }
  }
}

}  // namespace
}  // namespace kt
