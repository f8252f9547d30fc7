// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention/mla.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/simd/testing.h"

namespace kt {
namespace {

struct Shape {
  int positions, heads, kv_lora, rope, block_tokens;
  bool is_bf16;
};

Shape RandomShape(TestRandom& random, bool is_bf16) {
  return {random.Int(1, 170),    random.Int(1, 16), random.Int(16, random.Int(0, 3) ? 130 : 512),
          2 * random.Int(4, 32), random.Int(1, 40), is_bf16};
}

// One sequence with shuffled blocks in a cache whose unwritten places hold NaN.
class Sequence {
 public:
  Sequence(TestRandom& random, const Shape& shape)
      : shape_(shape),
        q_stride_(int64_t{shape.heads} * Dim() + random.Int(0, 5)),
        q(random.Normals(shape.positions * q_stride_), shape.is_bf16),
        c(random.Normals(size_t(shape.positions) * shape.kv_lora), shape.is_bf16),
        k_rope(random.Normals(size_t(shape.positions) * shape.rope), shape.is_bf16),
        blocks_(shape.positions / shape.block_tokens + 3),
        table_(shape.positions / shape.block_tokens + 1) {
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
    rows_ = Activations(std::vector<float>(blocks_ * MlaBlockElements(shape_.block_tokens,
                                                                      shape_.kv_lora, shape_.rope),
                                           std::numeric_limits<float>::quiet_NaN()),
                        shape_.is_bf16);
  }

  // Writes and attends to [begin, end), running the tasks in the given order on one scratch.
  // Selections are [positions, top_k].
  void Step(Isa isa, int begin, int end, Activations& out, bool reverse = false,
            const std::vector<int32_t>* selection = nullptr) {
    MlaWrite({.cache = Cache(),
              .c = c.at(size_t(begin) * shape_.kv_lora),
              .c_stride = shape_.kv_lora,
              .k_rope = k_rope.at(size_t(begin) * shape_.rope),
              .k_rope_stride = shape_.rope,
              .block_table = table_.data(),
              .start_position = begin,
              .tokens = end - begin});
    const int top_k =
        selection == nullptr ? 0 : static_cast<int>(selection->size()) / shape_.positions;
    // Queries lie token by token, results head by head.
    const MlaArgs args{
        .q = q.at(begin * q_stride_),
        .q_stride = q_stride_,
        .q_head_stride = Dim(),
        .out = out.at(size_t(begin) * shape_.kv_lora),
        .out_stride = shape_.kv_lora,
        .out_head_stride = int64_t{shape_.positions} * shape_.kv_lora,
        .cache = Cache(),
        .block_table = table_.data(),
        .start_position = begin,
        .tokens = end - begin,
        .heads = shape_.heads,
        .scale = Scale(),
        .selection = selection == nullptr ? nullptr : selection->data() + int64_t{begin} * top_k,
        .top_k = top_k};
    std::vector<float> scratch(MlaScratchBytes(shape_.kv_lora, shape_.rope) / sizeof(float),
                               std::numeric_limits<float>::quiet_NaN());
    const int tasks = MlaTasks(args);
    for (int task = 0; task < tasks; ++task)
      MlaTask(isa, args, reverse ? tasks - 1 - task : task, scratch.data());
  }

  // Moves block i of the table to an unused one, as copy-on-write does.
  void MoveBlock(int i) {
    BlockCopy(Cache(), table_[i], spare_block_);
    std::swap(table_[i], spare_block_);
  }

  Activations NewOut() const {
    return Activations(size_t(shape_.heads) * shape_.positions * shape_.kv_lora, shape_.is_bf16);
  }
  size_t OutIndex(int position, int head, int d) const {
    return (size_t(head) * shape_.positions + position) * shape_.kv_lora + d;
  }

  // The definition over the given positions, in double; also the sum of |p c|, which bounds the
  // error.
  std::pair<double, double> Reference(int position, int head, int d,
                                      const std::vector<int32_t>& seen) const {
    std::vector<double> score;
    for (int j : seen) {
      double dot = 0;
      const size_t query = position * q_stride_ + head * Dim();
      for (int i = 0; i < shape_.kv_lora; ++i)
        dot += double(q.At(query + i)) * c.At(size_t(j) * shape_.kv_lora + i);
      for (int i = 0; i < shape_.rope; ++i)
        dot += double(q.At(query + shape_.kv_lora + i)) * k_rope.At(size_t(j) * shape_.rope + i);
      score.push_back(dot * Scale());
    }
    const double max = *std::max_element(score.begin(), score.end());
    double total = 0, sum = 0, magnitude = 0;
    for (size_t n = 0; n < seen.size(); ++n) {
      const double p = std::exp(score[n] - max), x = c.At(size_t(seen[n]) * shape_.kv_lora + d);
      total += p, sum += p * x, magnitude += p * std::abs(x);
    }
    return {sum / total, magnitude / total};
  }

  // Compares a few results of every kind with the reference; seen(position) lists what it attends
  // to.
  template <typename Seen>
  void Check(TestRandom& random, const Activations& out, Seen seen) const {
    for (int check = 0; check < 40; ++check) {
      const int position = check == 0 ? shape_.positions - 1 : random.Int(0, shape_.positions - 1);
      const int head = random.Int(0, shape_.heads - 1), d = random.Int(0, shape_.kv_lora - 1);
      const auto [want, magnitude] = Reference(position, head, d, seen(position));
      // A score of magnitude up to ~5 is off by Dim() roundings, which moves its weight by as
      // much; the sums add positions / 4 more.
      const double tolerance = std::abs(want) * ActivationEpsilon(shape_.is_bf16) +
                               magnitude * (5 * Dim() + shape_.positions + 16) * 0x1p-24;
      ASSERT_NEAR(out.At(OutIndex(position, head, d)), want, tolerance)
          << "position " << position << " head " << head << " of " << shape_.heads << " kv_lora "
          << shape_.kv_lora << " rope " << shape_.rope;
    }
  }

 private:
  int Dim() const { return shape_.kv_lora + shape_.rope; }
  float Scale() const { return 1 / std::sqrt(static_cast<float>(Dim())); }
  MlaCache Cache() {
    return {rows_.data(), shape_.block_tokens, shape_.kv_lora, shape_.rope, shape_.is_bf16};
  }

  Shape shape_;
  int64_t q_stride_;

 public:
  Activations q, c, k_rope;

 private:
  int blocks_;
  std::vector<int32_t> table_;
  int32_t spare_block_;
  Activations rows_{0, false};
};

std::vector<int32_t> AllUpTo(int position) {
  std::vector<int32_t> all(position + 1);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// [positions, top_k]: up to top_k random positions for each query, ascending.
std::vector<int32_t> RandomSelection(TestRandom& random, int positions, int top_k) {
  std::vector<int32_t> selection(size_t(positions) * top_k, -1);
  for (int t = 0; t < positions; ++t) {
    std::vector<int32_t> list = AllUpTo(t);
    while (static_cast<int>(list.size()) > top_k)
      list.erase(list.begin() + random.Int(0, static_cast<int>(list.size()) - 1));
    std::copy(list.begin(), list.end(), selection.begin() + size_t(t) * top_k);
  }
  return selection;
}

std::vector<int32_t> SelectedOf(const std::vector<int32_t>& selection, int top_k, int position) {
  std::vector<int32_t> list(selection.begin() + size_t(position) * top_k,
                            selection.begin() + size_t(position + 1) * top_k);
  list.erase(std::find(list.begin(), list.end(), -1), list.end());
  return list;
}

TEST(MlaTest, EveryRowOfTheTableEqualsTheReference) {
  TestRandom random(61);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 60; ++trial) {
      const Shape shape = RandomShape(random, trial % 2 == 0);
      Sequence sequence(random, shape);
      Activations out = sequence.NewOut();
      sequence.Step(isa, 0, shape.positions, out);
      sequence.Check(random, out, AllUpTo);
    }
  }
}

TEST(MlaTest, ASelectionIsAllThatAQuerySees) {
  TestRandom random(62);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 40; ++trial) {
      const Shape shape = RandomShape(random, trial % 2 == 0);
      const int top_k = random.Int(1, 100);
      const std::vector<int32_t> selection = RandomSelection(random, shape.positions, top_k);
      Sequence sequence(random, shape);
      Activations out = sequence.NewOut();
      sequence.Step(isa, 0, shape.positions, out, false, &selection);
      sequence.Check(random, out,
                     [&](int position) { return SelectedOf(selection, top_k, position); });
    }
  }
}

TEST(MlaTest, ChunksDecodeOrderOfTasksAndASelectionOfAllGiveTheSameBits) {
  TestRandom random(63);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 16; ++trial) {
      const Shape shape = RandomShape(random, trial % 2 == 0);
      const int positions = shape.positions, top_k = random.Int(1, 100);
      const std::vector<int32_t> some = RandomSelection(random, positions, top_k),
                                 all = RandomSelection(random, positions, positions + 3);
      Sequence sequence(random, shape);
      for (const std::vector<int32_t>* selection : {&all, &some}) {
        Activations whole = sequence.NewOut(), chunks = whole, decode = whole, dense = whole;
        sequence.Clear();
        sequence.Step(isa, 0, positions, whole, false, selection);
        sequence.Clear();
        for (int begin = 0; begin < positions;) {
          const int end = std::min(positions, begin + random.Int(1, 90));
          sequence.Step(isa, begin, end, chunks, /*reverse=*/true, selection);
          begin = end;
        }
        sequence.Clear();
        for (int i = 0; i < positions; ++i) sequence.Step(isa, i, i + 1, decode, false, selection);
        EXPECT_TRUE(whole == chunks);
        EXPECT_TRUE(whole == decode);
        sequence.Clear();
        for (int i = 0; i < positions; ++i) sequence.Step(isa, i, i + 1, dense);
        EXPECT_EQ(whole == dense, selection == &all || positions <= top_k);
      }
    }
  }
}

TEST(MlaTest, ACopiedBlockServesAsTheOriginal) {
  TestRandom random(64);
  Sequence sequence(random, {70, 5, 40, 8, 16, true});
  Activations want = sequence.NewOut(), got = want;
  sequence.Step(Isa::kScalar, 0, 69, want);
  got = want;
  sequence.Step(Isa::kScalar, 69, 70, want);
  for (int block : {2, 4, 0}) sequence.MoveBlock(block);
  sequence.Step(Isa::kScalar, 69, 70, got);
  EXPECT_TRUE(want == got);
}

TEST(MlaTest, ARowThatIsNotFiniteHarmsOnlyQueriesThatSeeIt) {
  TestRandom random(65);
  const Shape shape{100, 3, 24, 8, 16, false};
  const int bad = 41, top_k = 10;
  for (Isa isa : RunnableIsas()) {
    for (bool in_rope : {false, true}) {
      Sequence sequence(random, shape);
      Activations& part = in_rope ? sequence.k_rope : sequence.c;
      const int width = in_rope ? shape.rope : shape.kv_lora;
      std::vector<float> values = random.Normals(part.size());
      values[bad * width + 3] = std::numeric_limits<float>::quiet_NaN();
      part = Activations(values, false);
      const std::vector<int32_t> selection = RandomSelection(random, shape.positions, top_k);
      for (bool selected : {false, true}) {
        Activations out = sequence.NewOut();
        sequence.Step(isa, 0, shape.positions, out, false, selected ? &selection : nullptr);
        for (int i = 0; i < shape.positions; ++i) {
          const std::vector<int32_t> seen = selected ? SelectedOf(selection, top_k, i) : AllUpTo(i);
          bool finite = true;
          for (int h = 0; h < shape.heads; ++h) {
            for (int d = 0; d < shape.kv_lora; ++d)
              finite = finite && std::isfinite(out.At(sequence.OutIndex(i, h, d)));
          }
          EXPECT_EQ(finite, std::find(seen.begin(), seen.end(), bad) == seen.end()) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kt
