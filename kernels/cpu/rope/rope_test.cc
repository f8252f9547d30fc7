// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/simd/testing.h"

namespace kt {
namespace {

struct Table {
  std::vector<float> cos, sin;
};
Table MakeTable(const std::vector<int32_t>& positions, const std::vector<float>& inv_freq,
                float scale) {
  Table table{std::vector<float>(positions.size() * inv_freq.size()),
              std::vector<float>(positions.size() * inv_freq.size())};
  RopeTable(positions.data(), static_cast<int>(positions.size()), inv_freq.data(),
            static_cast<int>(inv_freq.size()), scale, table.cos.data(), table.sin.data());
  return table;
}

TEST(RopeTest, TheAngleIsTheFp32Product) {
  Table table = MakeTable({123457}, {0.7133f}, 1.5f);
  EXPECT_EQ(table.cos[0], 1.5f * cosf(123457.0f * 0.7133f));
  EXPECT_EQ(table.sin[0], 1.5f * sinf(123457.0f * 0.7133f));
}

TEST(RopeTest, EveryRowOfTheTableEqualsTheReference) {
  TestRandom random(21);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 200; ++trial) {
      const int tokens = random.Int(0, 4), heads = random.Int(1, 5), half = random.Int(1, 70);
      const int rotary = 2 * half, head_dim = rotary + random.Int(0, 20);
      const int offset = random.Int(0, head_dim - rotary);  // of what turns, in a head
      const int64_t stride = int64_t{heads} * head_dim + random.Int(0, 7);
      const bool is_bf16 = trial % 2 == 0, interleaved = trial % 4 < 2;
      std::vector<int32_t> positions(tokens);
      for (int32_t& p : positions) p = random.Int(0, 200000);
      std::vector<float> inv_freq(half);
      for (int j = 0; j < half; ++j)
        inv_freq[j] = static_cast<float>(std::pow(10000.0, -2.0 * j / rotary));
      Table table = MakeTable(positions, inv_freq, 1.1f);
      const Activations before(random.Normals(tokens * stride), is_bf16);
      Activations x = before;
      ApplyRope(isa, {x.at(offset), stride, table.cos.data(), table.sin.data(), tokens, heads,
                      head_dim, rotary, interleaved, is_bf16});
      std::vector<bool> turned(x.size());
      for (int t = 0; t < tokens; ++t) {
        for (int h = 0; h < heads; ++h) {
          for (int j = 0; j < half; ++j) {
            const int64_t head = t * stride + h * head_dim + offset;
            const int64_t first = head + (interleaved ? 2 * j : j),
                          second = head + (interleaved ? 2 * j + 1 : j + half);
            double a = before.At(first), b = before.At(second), c = table.cos[t * half + j],
                   s = table.sin[t * half + j];
            double tolerance =
                (std::abs(a) + std::abs(b)) * 1.1 * (ActivationEpsilon(is_bf16) + 2 * 0x1p-24);
            ASSERT_NEAR(x.At(first), a * c - b * s, tolerance);
            ASSERT_NEAR(x.At(second), b * c + a * s, tolerance);
            turned[first] = turned[second] = true;
          }
        }
      }
      for (size_t i = 0; i < x.size(); ++i) {
        if (turned[i]) continue;
        ASSERT_EQ(x.At(i), before.At(i)) << "a component outside of what turns changed";
      }
    }
  }
}

TEST(RopeTest, ATokenDependsOnItselfOnly) {
  TestRandom random(22);
  const int tokens = 6, heads = 3, head_dim = 40, rotary = 36;
  std::vector<int32_t> positions = {7, 0, 19, 3, 100000, 5};
  std::vector<float> inv_freq = random.Normals(rotary / 2);
  Table table = MakeTable(positions, inv_freq, 1);
  for (Isa isa : RunnableIsas()) {
    for (bool interleaved : {false, true}) {
      Activations whole(random.Normals(tokens * heads * head_dim), true), alone = whole;
      RopeArgs args{whole.data(), heads * head_dim, table.cos.data(), table.sin.data(), tokens,
                    heads,        head_dim,         rotary,           interleaved,      true};
      ApplyRope(isa, args);
      for (int t = 0; t < tokens; ++t) {
        Table one = MakeTable({positions[t]}, inv_freq, 1);
        ApplyRope(isa, {alone.at(t * heads * head_dim), 0, one.cos.data(), one.sin.data(), 1, heads,
                        head_dim, rotary, interleaved, true});
      }
      EXPECT_TRUE(whole == alone);
    }
  }
}

}  // namespace
}  // namespace kt
