// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/expert_ffn/glu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/expert_ffn/moe_ffn.h"

namespace kt {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class GluTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!IsaSupported(GetParam())) GTEST_SKIP() << "this CPU cannot run " << IsaName(GetParam());
  }
  float F32(float gate, float up, const GluParams& params = {}) {
    float y;
    SelectGlu(GetParam()).to_f32(params, &gate, &up, 1, &y);
    return y;
  }
};

TEST_P(GluTest, ErrorIsAFewUnitsInTheLastPlace) {
  std::vector<float> gate, up, y(1);
  for (float g = -120; g < 120; g += 0.00137f) gate.push_back(g);
  for (float g = 1e-38f; g < 1e38f; g *= 1.7f) gate.insert(gate.end(), {g, -g});
  for (size_t i = 0; i < gate.size(); ++i) up.push_back(i % 2 ? 0.75f : -1.5f);
  y.resize(gate.size());
  SelectGlu(GetParam()).to_f32({}, gate.data(), up.data(), gate.size(), y.data());
  for (size_t i = 0; i < gate.size(); ++i) {
    // Where exp(-gate) overflows fp32 (gate < -88.7) the result is zero instead of at most 89 x 1.5
    // / FLT_MAX.
    double exact = gate[i] / (1 + std::exp(-double{gate[i]})) * up[i];
    ASSERT_NEAR(y[i], exact, 4 * std::numeric_limits<float>::epsilon() * std::abs(exact) + 4e-37)
        << gate[i];
  }
}

TEST_P(GluTest, ExtremesAreThoseOfTheFormula) {
  EXPECT_EQ(F32(kInf, 2), kInf);
  EXPECT_EQ(F32(3e38f, 0.5f), 1.5e38f);
  EXPECT_EQ(F32(-3e38f, 0.5f), 0);
  EXPECT_EQ(F32(0, 5), 0);
  EXPECT_TRUE(std::isnan(F32(std::nanf(""), 1)));
  EXPECT_TRUE(std::isnan(F32(1, std::nanf(""))));
}

TEST_P(GluTest, LimitsAlphaAndOffsetAreThoseOfTheFormula) {
  for (GluParams p : {GluParams{1.702f, 7, 1}, GluParams{1, 2.5f, 0}, GluParams{0.5f, kInf, -2}}) {
    std::vector<float> gate, up;
    for (float g = -30; g < 30; g += 0.173f) {
      gate.push_back(g);
      up.push_back(std::sin(g * 3.1f) * 12);
    }
    std::vector<float> y(gate.size());
    SelectGlu(GetParam()).to_f32(p, gate.data(), up.data(), gate.size(), y.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = std::min(gate[i], p.limit);
      const double u = std::min(std::max(up[i], -p.limit), p.limit);
      const double exact = g / (1 + std::exp(-double{p.alpha} * g)) * (u + p.up_offset);
      // The exponent is rounded once more than in the plain form; u + offset may cancel.
      const double bound = (std::abs(p.alpha * g) + 6) * std::abs(exact) + std::abs(g * u);
      ASSERT_NEAR(y[i], exact, std::numeric_limits<float>::epsilon() * bound) << gate[i];
    }
    EXPECT_EQ(F32(1e18f, 1e18f, p), F32(std::min(1e18f, p.limit), std::min(1e18f, p.limit), p));
    EXPECT_EQ(F32(2, -1e30f, p), F32(2, std::max(-1e30f, -p.limit), p));
    EXPECT_TRUE(std::isnan(F32(std::nanf(""), 1, p)));
    EXPECT_TRUE(std::isnan(F32(1, std::nanf(""), p)));
  }
}

TEST_P(GluTest, Bf16IsTheRoundedF32AndPositionsDoNotMatter) {
  for (int n : {1, 3, 8, 13, 64, 77}) {
    std::vector<float> gate, up, f32(n);
    for (int i = 0; i < n; ++i) {
      gate.push_back(std::sin(i * 1.3f) * 9);
      up.push_back(i == 5 ? std::nanf("") : std::cos(i * 0.7f) * 3);
    }
    std::vector<bf16> rounded(n + 1, bf16{0x1234});
    SelectGlu(GetParam()).to_f32({}, gate.data(), up.data(), n, f32.data());
    SelectGlu(GetParam()).to_bf16({}, gate.data(), up.data(), n, rounded.data());
    EXPECT_EQ(rounded[n].bits, 0x1234) << "written past the end";
    for (int i = 0; i < n; ++i) {
      if (i == 5) {
        EXPECT_TRUE(std::isnan(f32[i]) && std::isnan(ToFloat(rounded[i])));
      } else {
        EXPECT_EQ(f32[i], F32(gate[i], up[i])) << i;
        EXPECT_EQ(rounded[i].bits, ToBf16(f32[i]).bits) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, GluTest, testing::ValuesIn(kAllIsas),
                         [](const auto& info) { return IsaName(info.param); });

}  // namespace
}  // namespace kt
