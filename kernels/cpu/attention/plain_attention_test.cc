// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention/plain_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/simd/testing.h"

namespace kt {
namespace {

struct Sequence {
  int positions, heads, key_dim, value_dim;
  bool is_bf16;
  int64_t q_stride, k_stride, v_stride;
  Activations q, k, v;

  Sequence(TestRandom& random, bool is_bf16)
      : positions(random.Int(1, 200)),
        heads(random.Int(1, 4)),
        key_dim(random.Int(1, 80)),
        value_dim(random.Int(1, 80)),
        is_bf16(is_bf16),
        q_stride(heads * key_dim + random.Int(0, 5)),
        k_stride(heads * key_dim + random.Int(0, 5)),
        v_stride(heads * value_dim + random.Int(0, 5)),
        q(random.Normals(positions * q_stride), is_bf16),
        k(random.Normals(positions * k_stride), is_bf16),
        v(random.Normals(positions * v_stride), is_bf16) {}

  Activations NewOut() const { return Activations(size_t(positions) * heads * value_dim, is_bf16); }
  float Scale() const { return 1 / std::sqrt(static_cast<float>(key_dim)); }

  // Attends from [begin, end), which end the sequence for now.
  void Step(Isa isa, int begin, int end, Activations& out, bool reverse = false) const {
    const PlainAttentionArgs args{.q = q.at(begin * q_stride),
                                  .q_stride = q_stride,
                                  .k = k.data(),
                                  .k_stride = k_stride,
                                  .v = v.data(),
                                  .v_stride = v_stride,
                                  .out = out.at(size_t(begin) * heads * value_dim),
                                  .out_stride = heads * value_dim,
                                  .tokens = end - begin,
                                  .keys = end,
                                  .heads = heads,
                                  .key_dim = key_dim,
                                  .value_dim = value_dim,
                                  .scale = Scale(),
                                  .is_bf16 = is_bf16};
    std::vector<float> scratch(PlainAttentionScratchBytes(key_dim, value_dim) / sizeof(float),
                               std::numeric_limits<float>::quiet_NaN());
    const int tasks = PlainAttentionTasks(args);
    for (int task = 0; task < tasks; ++task)
      PlainAttentionTask(isa, args, reverse ? tasks - 1 - task : task, scratch.data());
  }

  // The definition, in double; also the sum of |p v|, which bounds the error.
  std::pair<double, double> Reference(int position, int head, int d) const {
    std::vector<double> score(position + 1);
    for (int j = 0; j <= position; ++j) {
      for (int i = 0; i < key_dim; ++i) {
        score[j] += double(q.At(position * q_stride + head * key_dim + i)) *
                    k.At(j * k_stride + head * key_dim + i) * Scale();
      }
    }
    const double max = *std::max_element(score.begin(), score.end());
    double total = 0, sum = 0, magnitude = 0;
    for (int j = 0; j <= position; ++j) {
      const double p = std::exp(score[j] - max), x = v.At(j * v_stride + head * value_dim + d);
      total += p, sum += p * x, magnitude += p * std::abs(x);
    }
    return {sum / total, magnitude / total};
  }
};

TEST(PlainAttentionTest, EveryRowOfTheTableEqualsTheReference) {
  TestRandom random(81);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 60; ++trial) {
      const Sequence s(random, trial % 2 == 0);
      Activations out = s.NewOut();
      s.Step(isa, 0, s.positions, out);
      for (int check = 0; check < 60; ++check) {
        const int position = check == 0 ? s.positions - 1 : random.Int(0, s.positions - 1);
        const int head = random.Int(0, s.heads - 1), d = random.Int(0, s.value_dim - 1);
        const auto [want, magnitude] = s.Reference(position, head, d);
        // As in attention_test.cc.
        const double tolerance = std::abs(want) * ActivationEpsilon(s.is_bf16) +
                                 magnitude * (5 * s.key_dim + s.positions + 16) * 0x1p-24;
        ASSERT_NEAR(out.At((size_t(position) * s.heads + head) * s.value_dim + d), want, tolerance)
            << "isa " << int(isa) << " position " << position << " key_dim " << s.key_dim
            << " value_dim " << s.value_dim;
      }
    }
  }
}

TEST(PlainAttentionTest, ChunksAndOrderOfTasksGiveTheSameBits) {
  TestRandom random(82);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 16; ++trial) {
      const Sequence s(random, trial % 2 == 0);
      Activations whole = s.NewOut(), chunks = whole, single = whole;
      s.Step(isa, 0, s.positions, whole);
      for (int begin = 0; begin < s.positions;) {
        const int end = std::min(s.positions, begin + random.Int(1, 90));
        s.Step(isa, begin, end, chunks, /*reverse=*/true);
        begin = end;
      }
      for (int i = 0; i < s.positions; ++i) s.Step(isa, i, i + 1, single);
      EXPECT_TRUE(whole == chunks);
      EXPECT_TRUE(whole == single);
    }
  }
}

TEST(PlainAttentionTest, AValueThatIsNotFiniteHarmsOnlyQueriesThatSeeIt) {
  TestRandom random(83);
  for (Isa isa : RunnableIsas()) {
    Sequence s(random, false);
    const int bad = s.positions / 2;
    std::vector<float> values = random.Normals(s.v.size());
    values[bad * s.v_stride] = std::numeric_limits<float>::infinity();
    s.v = Activations(values, false);
    Activations out = s.NewOut();
    s.Step(isa, 0, s.positions, out);
    for (int i = 0; i < s.positions; ++i)
      EXPECT_EQ(std::isfinite(out.At(size_t(i) * s.heads * s.value_dim)), i < bad) << i;
  }
}

}  // namespace
}  // namespace kt
