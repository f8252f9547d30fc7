// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/simd/testing.h"

namespace kt {
namespace {

// One sequence with shuffled blocks in a cache whose unwritten places hold NaN.
class Sequence {
 public:
  Sequence(TestRandom& random, int positions, int heads, int kv_heads, int head_dim,
           int block_tokens, bool is_bf16)
      : positions_(positions),
        heads_(heads),
        kv_heads_(kv_heads),
        head_dim_(head_dim),
        block_tokens_(block_tokens),
        is_bf16_(is_bf16),
        q(random.Normals(size_t(positions) * heads * head_dim), is_bf16),
        k(random.Normals(size_t(positions) * kv_heads * head_dim), is_bf16),
        v(random.Normals(size_t(positions) * kv_heads * head_dim), is_bf16),
        blocks_(positions / block_tokens + 3),
        table_(positions / block_tokens + 1) {
    std::vector<int32_t> free(blocks_);
    std::iota(free.begin(), free.end(), 0);
    for (size_t i = 0; i < table_.size(); ++i) {
      std::swap(free[i], free[random.Int(static_cast<int>(i), blocks_ - 1)]);
      table_[i] = free[i];
    }
    spare_block_ = free.back();
    Clear();
  }

  void Clear() {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    k_cache_ = Activations(
        std::vector<float>(blocks_ * KBlockElements(kv_heads_, block_tokens_, head_dim_), nan),
        is_bf16_);
    v_cache_ = Activations(
        std::vector<float>(blocks_ * VBlockElements(kv_heads_, block_tokens_, head_dim_), nan),
        is_bf16_);
  }

  // Writes and attends to [begin, end), running the tasks in the given order on one scratch.
  void Step(Isa isa, int begin, int end, Activations& out, bool reverse = false) {
    const KvCache cache{k_cache_.data(), v_cache_.data(), block_tokens_,
                        kv_heads_,       head_dim_,       is_bf16_};
    const int64_t kv_stride = kv_heads_ * head_dim_, q_stride = heads_ * head_dim_;
    KvWrite({cache, k.at(begin * kv_stride), kv_stride, v.at(begin * kv_stride), kv_stride,
             table_.data(), begin, end - begin});
    // Blocks that no query sees any more are gone.
    std::vector<int32_t> table = table_;
    if (window > 0) {
      for (int i = 0; (i + 1) * block_tokens_ <= begin - window + 1; ++i) table[i] = 1 << 28;
    }
    AttentionArgs args{q.at(begin * q_stride),
                       q_stride,
                       out.at(begin * q_stride),
                       q_stride,
                       cache,
                       table.data(),
                       begin,
                       end - begin,
                       heads_,
                       Scale(),
                       sinks.empty() ? nullptr : sinks.data(),
                       window};
    std::vector<float> scratch(AttentionScratchBytes(heads_, kv_heads_, head_dim_) / sizeof(float),
                               std::numeric_limits<float>::quiet_NaN());
    const int tasks = AttentionTasks(args);
    for (int task = 0; task < tasks; ++task)
      AttentionTask(isa, args, reverse ? tasks - 1 - task : task, scratch.data());
  }

  // Moves block i of the table to an unused one, as copy-on-write does.
  void MoveBlock(int i) {
    BlockCopy({k_cache_.data(), v_cache_.data(), block_tokens_, kv_heads_, head_dim_, is_bf16_},
              table_[i], spare_block_);
    std::swap(table_[i], spare_block_);
  }

  Activations NewOut() const { return Activations(q.size(), is_bf16_); }
  float Scale() const { return 1 / std::sqrt(static_cast<float>(head_dim_)); }

  // The definition, in double; also the sum of |p v|, which bounds the error.
  std::pair<double, double> Reference(int position, int head, int d) const {
    const int kv_head = head / (heads_ / kv_heads_);
    const int first = window == 0 ? 0 : std::max(0, position - window + 1);
    std::vector<double> score(position + 1);
    for (int j = first; j <= position; ++j) {
      for (int i = 0; i < head_dim_; ++i) {
        score[j] += double(q.At((int64_t{position} * heads_ + head) * head_dim_ + i)) *
                    k.At((int64_t{j} * kv_heads_ + kv_head) * head_dim_ + i);
      }
      score[j] *= Scale();
    }
    double max = *std::max_element(score.begin() + first, score.end());
    if (!sinks.empty()) max = std::max(max, double(sinks[head]));
    double total = sinks.empty() ? 0 : std::exp(sinks[head] - max), sum = 0, magnitude = 0;
    for (int j = first; j <= position; ++j) {
      double p = std::exp(score[j] - max),
             x = v.At((int64_t{j} * kv_heads_ + kv_head) * head_dim_ + d);
      total += p, sum += p * x, magnitude += p * std::abs(x);
    }
    return {sum / total, magnitude / total};
  }

 private:
  int positions_, heads_, kv_heads_, head_dim_, block_tokens_;
  bool is_bf16_;

 public:
  Activations q, k, v;
  std::vector<float> sinks;
  int window = 0;

 private:
  int blocks_;
  std::vector<int32_t> table_;
  int32_t spare_block_;
  Activations k_cache_{0, false}, v_cache_{0, false};
};

TEST(AttentionTest, EveryRowOfTheTableEqualsTheReference) {
  TestRandom random(31);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 120; ++trial) {
      const int kv_heads = random.Int(1, 3), group = random.Int(1, 5),
                head_dim = trial % 10 == 0 ? random.Int(240, 300) : random.Int(1, 90),
                positions = random.Int(1, 170);
      const bool is_bf16 = trial % 2 == 0;
      Sequence sequence(random, positions, kv_heads * group, kv_heads, head_dim,
                        16 * random.Int(1, 4), is_bf16);
      if (trial % 3 == 0) sequence.sinks = random.Normals(kv_heads * group, 3);
      if (trial % 4 >= 2) sequence.window = random.Int(1, positions + 10);
      Activations out = sequence.NewOut();
      sequence.Step(isa, 0, positions, out);
      for (int check = 0; check < 60; ++check) {
        const int position = check == 0 ? positions - 1 : random.Int(0, positions - 1);
        const int head = random.Int(0, kv_heads * group - 1), d = random.Int(0, head_dim - 1);
        auto [want, magnitude] = sequence.Reference(position, head, d);
        // A score of magnitude up to ~5 is off by head_dim roundings, which moves its weight by as
        // much; the sums add positions / 4 more.
        const double tolerance = std::abs(want) * ActivationEpsilon(is_bf16) +
                                 magnitude * (5 * head_dim + positions + 16) * 0x1p-24;
        ASSERT_NEAR(out.At((int64_t{position} * kv_heads * group + head) * head_dim + d), want,
                    tolerance)
            << "isa " << int(isa) << " position " << position << " head_dim " << head_dim;
      }
    }
  }
}

TEST(AttentionTest, ChunksDecodeBatchAndOrderOfTasksGiveTheSameBits) {
  TestRandom random(32);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 24; ++trial) {
      const int kv_heads = random.Int(1, 3), group = random.Int(1, 9),
                head_dim = 8 * random.Int(1, 16), positions = random.Int(60, 300);
      Sequence sequence(random, positions, kv_heads * group, kv_heads, head_dim,
                        16 * random.Int(1, 3), trial % 2 == 0);
      if (trial % 3 == 0) sequence.sinks = random.Normals(kv_heads * group);
      if (trial % 4 >= 2) sequence.window = random.Int(1, 150);
      Activations whole = sequence.NewOut(), chunks = sequence.NewOut(), decode = sequence.NewOut();
      sequence.Step(isa, 0, positions, whole);
      sequence.Clear();
      for (int begin = 0; begin < positions;) {
        const int end = std::min(positions, begin + random.Int(1, 90));
        sequence.Step(isa, begin, end, chunks, /*reverse=*/true);
        begin = end;
      }
      sequence.Clear();
      for (int i = 0; i < positions; ++i) sequence.Step(isa, i, i + 1, decode);
      EXPECT_TRUE(whole == chunks);
      EXPECT_TRUE(whole == decode);
    }
  }
}

TEST(AttentionTest, AWindowOverAllPositionsAndASinkOfNoWeightChangeNothing) {
  TestRandom random(35);
  const int positions = 150, heads = 6;
  for (Isa isa : RunnableIsas()) {
    Sequence sequence(random, positions, heads, 2, 48, 32, true);
    Activations want = sequence.NewOut(), windowed = want, sunk = want;
    sequence.Step(isa, 0, positions, want);
    sequence.window = positions;
    sequence.Step(isa, 0, positions, windowed);
    sequence.window = 0;
    sequence.sinks.assign(heads, -std::numeric_limits<float>::infinity());
    sequence.Step(isa, 0, positions, sunk);
    EXPECT_TRUE(want == windowed);
    EXPECT_TRUE(want == sunk);
  }
}

TEST(AttentionTest, ACopiedBlockServesAsTheOriginal) {
  TestRandom random(33);
  Sequence sequence(random, 70, 4, 2, 20, 16, true);
  Activations want = sequence.NewOut(), got = sequence.NewOut();
  sequence.Step(Isa::kScalar, 0, 69, want);
  got = want;
  sequence.Step(Isa::kScalar, 69, 70, want);
  for (int block : {2, 4, 0}) sequence.MoveBlock(block);
  sequence.Step(Isa::kScalar, 69, 70, got);
  EXPECT_TRUE(want == got);
}

TEST(AttentionTest, AKeyOrValueThatIsNotFiniteHarmsOnlyQueriesThatSeeIt) {
  TestRandom random(34);
  for (Isa isa : RunnableIsas()) {
    const int positions = 100, bad = 41, head_dim = 16;
    for (float poison :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (bool in_key : {false, true}) {
        Sequence sequence(random, positions, 2, 1, head_dim, 16, false);
        std::vector<float> values = random.Normals(positions * head_dim);
        values[bad * head_dim + 3] = poison;
        (in_key ? sequence.k : sequence.v) = Activations(values, false);
        Activations out = sequence.NewOut();
        sequence.Step(isa, 0, positions, out);
        for (int i = 0; i < positions; ++i) {
          bool finite = true;
          for (int d = 0; d < 2 * head_dim; ++d)
            finite = finite && std::isfinite(out.At(i * 2 * head_dim + d));
          if (i < bad) {
            EXPECT_TRUE(finite) << i;
          } else if (!in_key ||
                     std::isnan(
                         poison)) {  // an infinite key may give a score of -infinity, a weight of 0
            EXPECT_FALSE(finite) << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kt
