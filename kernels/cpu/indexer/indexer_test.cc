// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/indexer/indexer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/simd/testing.h"

namespace kt {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Shape {
  int positions, heads, head_dim, block_tokens, top_k;
  bool is_bf16;
};

Shape RandomShape(TestRandom& random, int positions, bool is_bf16) {
  return {positions,         random.Int(1, 16),  random.Int(0, 1) ? 32 : random.Int(1, 140),
          random.Int(1, 40), random.Int(1, 100), is_bf16};
}

// What the definition selects from scores: best first, equal ones by position, NaN last.
std::vector<int32_t> BestOf(const float* scores, int seen, int top_k) {
  std::vector<int32_t> order(seen);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return std::isnan(scores[b]) ? !std::isnan(scores[a]) : scores[a] > scores[b];
  });
  order.resize(std::min(seen, top_k));
  std::sort(order.begin(), order.end());
  order.resize(top_k, -1);
  return order;
}

// One sequence with shuffled blocks in a cache whose unwritten places hold NaN.
class Sequence {
 public:
  Sequence(TestRandom& random, const Shape& shape)
      : shape_(shape),
        q(random.Normals(size_t(shape.positions) * Width()), shape.is_bf16),
        k(random.Normals(size_t(shape.positions) * shape.head_dim), shape.is_bf16),
        w(random.Normals(size_t(shape.positions) * shape.heads)),
        scores(size_t(shape.positions) * shape.positions, kNan),
        selection(size_t(shape.positions) * shape.top_k, -2),
        table_(shape.positions / shape.block_tokens + 1) {
    std::iota(table_.begin(), table_.end(), 0);
    for (size_t i = table_.size() - 1; i > 0; --i)
      std::swap(table_[i], table_[random.Int(0, static_cast<int>(i))]);
    rows_ = Activations(
        std::vector<float>(table_.size() * MlaBlockElements(shape.block_tokens, shape.head_dim, 0),
                           kNan),
        shape.is_bf16);
  }

  // Writes and selects for [begin, end).
  void Step(Isa isa, int begin, int end, bool reverse = false) {
    const MlaCache cache{rows_.data(), shape_.block_tokens, shape_.head_dim, 0, shape_.is_bf16};
    MlaWrite({.cache = cache,
              .c = k.at(size_t(begin) * shape_.head_dim),
              .c_stride = shape_.head_dim,
              .block_table = table_.data(),
              .start_position = begin,
              .tokens = end - begin});
    const IndexerArgs args{.q = q.at(size_t(begin) * Width()),
                           .q_stride = Width(),
                           .w = w.data() + size_t(begin) * shape_.heads,
                           .w_stride = shape_.heads,
                           .cache = cache,
                           .block_table = table_.data(),
                           .start_position = begin,
                           .tokens = end - begin,
                           .heads = shape_.heads,
                           .top_k = shape_.top_k,
                           .scores = scores.data() + size_t(begin) * shape_.positions,
                           .scores_stride = shape_.positions,
                           .selection = selection.data() + size_t(begin) * shape_.top_k};
    std::vector<float> scratch(IndexerScratchBytes(shape_.heads, shape_.head_dim) / sizeof(float),
                               kNan);
    const int tasks = IndexerScoreTasks(args);
    for (int task = 0; task < tasks; ++task)
      IndexerScoreTask(isa, args, reverse ? tasks - 1 - task : task, scratch.data());
    for (int token = 0; token < end - begin; ++token) IndexerSelect(args, token);
  }

  // The definition in double, and the sum of |w q k|, which bounds the error.
  std::pair<double, double> Reference(int t, int s) const {
    double score = 0, magnitude = 0;
    for (int h = 0; h < shape_.heads; ++h) {
      double dot = 0, size = 0;
      for (int d = 0; d < shape_.head_dim; ++d) {
        const double product = double(q.At(size_t(t) * Width() + h * shape_.head_dim + d)) *
                               k.At(size_t(s) * shape_.head_dim + d);
        dot += product, size += std::abs(product);
      }
      const double weight = w[size_t(t) * shape_.heads + h];
      score += weight * std::max(dot, 0.0), magnitude += std::abs(weight) * size;
    }
    return {score, magnitude};
  }

 private:
  int Width() const { return shape_.heads * shape_.head_dim; }
  Shape shape_;

 public:
  Activations q, k;
  std::vector<float> w, scores;
  std::vector<int32_t> selection;  // [positions, top_k]

 private:
  std::vector<int32_t> table_;
  Activations rows_{0, false};
};

TEST(IndexerTest, ScoresEqualTheReferenceAndTheBestAreSelected) {
  TestRandom random(71);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 40; ++trial) {
      const Shape shape = RandomShape(random, random.Int(1, 200), trial % 2 == 0);
      Sequence sequence(random, shape);
      sequence.Step(isa, 0, shape.positions);
      for (int t = 0; t < shape.positions; ++t) {
        const float* scores = sequence.scores.data() + size_t(t) * shape.positions;
        const std::vector<int32_t> got(sequence.selection.begin() + size_t(t) * shape.top_k,
                                       sequence.selection.begin() + size_t(t + 1) * shape.top_k);
        ASSERT_EQ(got, BestOf(scores, t + 1, shape.top_k)) << t;
        if (t < shape.top_k) continue;
        for (int s = random.Int(0, 9); s <= t; s += 10) {
          const auto [want, magnitude] = sequence.Reference(t, s);
          ASSERT_NEAR(scores[s], want, magnitude * (shape.head_dim + shape.heads) * 0x1p-24)
              << "isa " << int(isa) << " heads " << shape.heads << " head_dim " << shape.head_dim;
        }
      }
    }
  }
}

TEST(IndexerTest, ChunksDecodeAndOrderOfTasksGiveTheSameBits) {
  TestRandom random(72);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 12; ++trial) {
      const int positions = random.Int(1, 200);
      const Shape shape = RandomShape(random, positions, trial % 2 == 0);
      Sequence whole(random, shape);
      Sequence chunks = whole, decode = whole;
      whole.Step(isa, 0, positions);
      for (int begin = 0; begin < positions;) {
        const int end = std::min(positions, begin + random.Int(1, 90));
        chunks.Step(isa, begin, end, /*reverse=*/true);
        begin = end;
      }
      for (int i = 0; i < positions; ++i) decode.Step(isa, i, i + 1);
      EXPECT_EQ(whole.selection, chunks.selection);
      EXPECT_EQ(whole.selection, decode.selection);
      EXPECT_TRUE(Activations(whole.scores, false) == Activations(chunks.scores, false));
      EXPECT_TRUE(Activations(whole.scores, false) == Activations(decode.scores, false));
    }
  }
}

TEST(IndexerTest, TheSpanOfPositionsOfATaskDoesNotShow) {
  TestRandom random(73);
  const int positions = 2100;  // three tasks of a token
  for (Isa isa : RunnableIsas()) {
    Sequence sequence(random, {positions, 3, 20, 16, 50, true});
    sequence.Step(isa, 0, positions - 1);
    sequence.Step(isa, positions - 1, positions, /*reverse=*/true);
    const int t = positions - 1;
    const float* scores = sequence.scores.data() + size_t(t) * positions;
    for (int s : {0, 1023, 1024, 2047, 2048, t}) {
      const auto [want, magnitude] = sequence.Reference(t, s);
      EXPECT_NEAR(scores[s], want, magnitude * 23 * 0x1p-24) << s;
    }
    EXPECT_EQ(std::vector<int32_t>(sequence.selection.end() - 50, sequence.selection.end()),
              BestOf(scores, positions, 50));
  }
}

std::vector<int32_t> Select(std::vector<float> scores, int top_k) {
  std::vector<int32_t> selection(top_k);
  IndexerSelect({.start_position = static_cast<int>(scores.size()) - 1,
                 .tokens = 1,
                 .top_k = top_k,
                 .scores = scores.data(),
                 .selection = selection.data()},
                0);
  return selection;
}

TEST(IndexerTest, OfEqualScoresTheLowerPositionWins) {
  EXPECT_EQ(Select({1, 2, 2, 2, 1, 3}, 3), (std::vector<int32_t>{1, 2, 5}));
  EXPECT_EQ(Select({0.0f, -0.0f, 0.0f, -0.0f}, 2), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(Select({-0.0f, 0.0f, -1, 0.0f}, 3), (std::vector<int32_t>{0, 1, 3}));
  EXPECT_EQ(Select({-3, -2, -2, -2}, 2), (std::vector<int32_t>{1, 2}));
  TestRandom random(74);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<float> scores(random.Int(1, 300));
    for (float& score : scores) {
      score = static_cast<float>(random.Int(-3, 3));
      if (random.Int(0, 9) == 0) score = random.Int(0, 1) ? kNan : -kInf;
    }
    const int top_k = random.Int(1, 150);
    ASSERT_EQ(Select(scores, top_k), BestOf(scores.data(), static_cast<int>(scores.size()), top_k));
  }
}

TEST(IndexerTest, NanCountsLowest) {
  EXPECT_EQ(Select({kNan, -kInf, -kNan, -1e38f, kInf}, 3), (std::vector<int32_t>{1, 3, 4}));
  EXPECT_EQ(Select({-kNan, kNan, 0, kNan}, 2), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(Select({kNan, kNan}, 5), (std::vector<int32_t>{0, 1, -1, -1, -1}));
}

TEST(IndexerTest, AKeyThatIsNotANumberIsSelectedLast) {
  TestRandom random(75);
  for (Isa isa : RunnableIsas()) {
    Sequence sequence(random, {40, 5, 16, 8, 20, false});
    std::vector<float> keys = random.Normals(sequence.k.size());
    keys[7 * 16 + 2] = kNan;
    sequence.k = Activations(keys, false);
    sequence.Step(isa, 0, 40);
    EXPECT_TRUE(std::isnan(sequence.scores[39 * 40 + 7]));
    for (int t = 0; t < 40; ++t) {
      const auto begin = sequence.selection.begin() + t * 20, end = begin + 20;
      EXPECT_EQ(std::find(begin, end, 7) != end, t >= 7 && t < 20) << t;
    }
  }
}

// All finite E4M3 numbers of one sign: eight of each binade, steps of 2^-9 in the lowest.
std::vector<double> E4m3Numbers() {
  std::vector<double> numbers;
  for (int code = 0; code < 0x7f; ++code) {
    const int exponent = code >> 3, fraction = code & 7;
    numbers.push_back(exponent == 0 ? std::ldexp(fraction, -9)
                                    : std::ldexp(8 + fraction, exponent - 7 - 3));
  }
  return numbers;
}

double NearestE4m3(const std::vector<double>& numbers, double x) {
  size_t best = 0;
  for (size_t i = 1; i < numbers.size(); ++i) {
    const double here = std::abs(numbers[i] - std::abs(x)),
                 there = std::abs(numbers[best] - std::abs(x));
    if (here < there || (here == there && i % 2 == 0)) best = i;
  }
  return std::copysign(numbers[best], x);
}

// The least power of two p with 448 p >= max.
double ScaleOf(double max) {
  double scale = 0x1p-120;
  while (448 * scale < max) scale *= 2;
  return scale;
}

TEST(IndexerQuantizeTest, RoundsToTheNearestE4m3UnderAPowerOfTwo) {
  const std::vector<double> numbers = E4m3Numbers();
  ASSERT_EQ(numbers.back(), 448);
  TestRandom random(76);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 200; ++trial) {
      const int rows = random.Int(0, 3), n = random.Int(1, 140);
      const int64_t stride = n + random.Int(0, 5);
      const bool is_bf16 = trial % 2 == 0;
      std::vector<float> values =
          random.Normals(rows * stride, std::ldexp(1.0f, random.Int(-90, 90)));
      for (float& x : values) {
        if (random.Int(0, 4) == 0) x *= 0x1p-10f;  // among the steps of the lowest binade
        if (random.Int(0, 9) == 0) x = 0;
      }
      // A largest value of 448 times a power of two needs no larger scale, the next one does; a
      // half step between two numbers is a tie.
      if (rows > 0 && trial % 3 == 0) {
        std::fill_n(values.begin(), n, 17.0f);
        values[n / 2] = trial % 2 == 0 ? 448.0f : std::nextafter(448.0f, 500.0f);
      }
      const Activations before(values, is_bf16);
      Activations x = before;
      IndexerQuantize(isa, {x.data(), stride, rows, n, false, is_bf16});
      for (int r = 0; r < rows; ++r) {
        double max = 0;
        for (int i = 0; i < n; ++i)
          max = std::max(max, std::abs(double(before.At(r * stride + i))));
        const double scale = ScaleOf(max);
        for (int64_t i = r * stride; i < r * stride + stride; ++i) {
          const double was = before.At(i);
          ASSERT_EQ(x.At(i), i < r * stride + n ? scale * NearestE4m3(numbers, was / scale) : was)
              << "isa " << int(isa) << " value " << was << " scale " << scale;
        }
      }
    }
  }
}

TEST(IndexerQuantizeTest, TransformsFirst) {
  TestRandom random(77);
  for (Isa isa : RunnableIsas()) {
    for (int n = 1; n <= kHadamardMax; n *= 2) {
      for (bool is_bf16 : {false, true}) {
        const Activations before(random.Normals(n), is_bf16);
        Activations x = before;
        IndexerQuantize(isa, {x.data(), n, 1, n, true, is_bf16});
        std::vector<double> want(n);
        double max = 0;
        for (int i = 0; i < n; ++i) {
          for (int j = 0; j < n; ++j) {
            const int sign = std::popcount(unsigned(i & j)) % 2 == 0 ? 1 : -1;
            want[i] += sign * before.At(j) / std::sqrt(n);
          }
          max = std::max(max, std::abs(want[i]));
        }
        for (int i = 0; i < n; ++i) {
          // Half a step of E4M3 beside the rounding of what was transformed.
          const double tolerance = std::max(std::abs(want[i]) * 0x1p-4, ScaleOf(max) * 0x1p-10) +
                                   max * (ActivationEpsilon(is_bf16) + 16 * 0x1p-24);
          ASSERT_NEAR(x.At(i), want[i], tolerance) << "n " << n << " i " << i;
        }
      }
    }
  }
}

TEST(IndexerQuantizeTest, ARowDependsOnItselfOnlyAndBadOnesStay) {
  TestRandom random(78);
  const int rows = 6, n = 64;
  for (Isa isa : RunnableIsas()) {
    for (bool hadamard : {false, true}) {
      std::vector<float> values = random.Normals(rows * n);
      values[n + 3] = kNan;
      values[2 * n + 63] = -kInf;
      std::fill_n(values.begin() + 3 * n, n, 0.0f);
      const Activations before(values, true);
      Activations whole = before, alone = before;
      IndexerQuantize(isa, {whole.data(), n, rows, n, hadamard, true});
      for (int r = rows - 1; r >= 0; --r)
        IndexerQuantize(isa, {alone.at(r * n), 0, 1, n, hadamard, true});
      EXPECT_TRUE(whole == alone);
      EXPECT_TRUE(std::isfinite(whole.At(0)));
      EXPECT_TRUE(std::isnan(whole.At(n + 3)));
      EXPECT_FALSE(std::isfinite(whole.At(2 * n + 63)));
      for (int i = 0; i < n; ++i) {
        EXPECT_EQ(whole.At(3 * n + i), 0);
        EXPECT_TRUE(hadamard || i == 3 || whole.At(n + i) == before.At(n + i));
      }
    }
  }
}

}  // namespace
}  // namespace kt
