// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/simd/testing.h"
#include "kernels/cpu/simd/vec_probe.h"

namespace kt {
namespace {

struct Probe {
  Probe(Isa isa, const std::vector<float>& x)
      : exp(x.size()), widened(x.size()), rounded(x.size()) {
    VecProbe(isa, {x.data(), static_cast<int64_t>(x.size()), exp.data(), rounded.data(),
                   widened.data(), &sum, &max});
  }
  std::vector<float> exp, widened;
  std::vector<bf16> rounded;
  float sum = 0, max = 0;
};

TEST(VecTest, ExpIsWithinTwoUnitsInTheLastPlace) {
  std::vector<float> x;
  for (float v = -86.9f; v < 88.72f; v += 0.00097f) x.push_back(v);
  for (Isa isa : RunnableIsas()) {
    Probe probe(isa, x);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(double(x[i]));
      const double unit = std::ldexp(1.0, std::ilogb(want) - 23);
      ASSERT_LE(std::abs(probe.exp[i] - want), 2 * unit) << "isa " << int(isa) << " x " << x[i];
    }
  }
}

TEST(VecTest, ExpAtItsEnds) {
  const float inf = std::numeric_limits<float>::infinity();
  for (Isa isa : RunnableIsas()) {
    Probe probe(isa, {-inf, -3e38f, -87, 0, -0.0f, 88.8f, 3e38f, inf, std::nanf("")});
    EXPECT_EQ(std::vector<float>(probe.exp.begin(), probe.exp.end() - 1),
              (std::vector<float>{0, 0, 0, 1, 1, inf, inf, inf}));
    EXPECT_TRUE(std::isnan(probe.exp.back()));
  }
}

TEST(VecTest, RoundsToBf16AsTheBaseLibraryDoes) {
  TestRandom random(1);
  std::vector<float> x = random.Normals(100000, 1e3f);
  for (uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u, 0xffffffffu,
                        0x7f7fffffu, 0x3f808000u, 0x3f818000u, 0x00000001u, 0x80000000u}) {
    x.push_back(std::bit_cast<float>(bits));
  }
  for (Isa isa : RunnableIsas()) {
    Probe probe(isa, x);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(probe.rounded[i].bits, ToBf16(x[i]).bits) << x[i];
      ASSERT_EQ(std::bit_cast<uint32_t>(probe.widened[i]), uint32_t{ToBf16(x[i]).bits} << 16);
    }
  }
}

TEST(VecTest, ReductionsTakeEveryLane) {
  for (Isa isa : RunnableIsas()) {
    for (size_t hot = 0; hot < 35; ++hot) {
      std::vector<float> x(35, 0.0f);
      x[hot] = 7;
      Probe probe(isa, x);
      EXPECT_EQ(probe.sum, 7);
      EXPECT_EQ(probe.max, 7);
    }
  }
}

}  // namespace
}  // namespace kt
