// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sampling/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "kernels/cpu/sampling/counter_random.h"
#include "kernels/cpu/simd/testing.h"

namespace kt {
namespace {

using ::testing::ElementsAre;

struct Result {
  SampleStatus status;
  int32_t token = -1;
};
Result SampleOnce(const SamplingArgs& args) {
  std::vector<uint64_t> scratch(SampleScratchBytes(args.vocab) / 8 + 1);
  Result result{};
  result.token = -1;
  result.status = Sample(args, scratch.data(), &result.token);
  return result;
}
SamplingArgs Args(const std::vector<float>& logits, float temperature) {
  SamplingArgs args;
  args.logits = logits.data();
  args.vocab = static_cast<int>(logits.size());
  args.temperature = temperature;
  return args;
}

// The distribution after all filters, by a full sort and in double.
std::vector<double> Reference(const SamplingArgs& a) {
  std::vector<float> values(a.logits, a.logits + a.vocab);
  for (const auto& c : a.counts) {
    float& v = values[c.token_id];
    if (c.in_prompt || c.in_output > 0)
      v = v > 0 ? v / a.repetition_penalty : v * a.repetition_penalty;
    v -= a.frequency_penalty * c.in_output + (c.in_output > 0 ? a.presence_penalty : 0);
  }
  for (const auto& b : a.biases) values[b.token_id] += b.bias;
  for (int32_t id : a.suppressed_ids) values[id] = -std::numeric_limits<float>::infinity();
  std::vector<int> order(a.vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return values[x] > values[y]; });
  std::vector<double> p(a.vocab, 0.0);
  if (a.temperature == 0) {
    p[order[0]] = 1;
    return p;
  }
  if (a.top_k > 0 && a.top_k < a.vocab) order.resize(a.top_k);
  double total = 0, sum = 0;
  for (int id : order) total += std::exp((values[id] - double(values[order[0]])) / a.temperature);
  for (int id : order) {
    double w = std::exp((values[id] - double(values[order[0]])) / a.temperature);
    if (id != order[0] && (sum >= a.top_p * total || w < a.min_p)) break;
    sum += w;
    p[id] = w;
  }
  for (double& x : p) x /= sum;
  return p;
}

TEST(CounterRandomTest, PhiloxKnownAnswers) {
  Philox zero = Philox4x32(0, {{0, 0, 0, 0}});
  EXPECT_THAT(zero.word, ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  Philox ones = Philox4x32(~uint64_t{0}, {{~0u, ~0u, ~0u, ~0u}});
  EXPECT_THAT(ones.word, ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
}

TEST(CounterRandomTest, EveryPartOfTheKeyMatters) {
  const double base = UniformDraw(1, 2, 3);
  EXPECT_NE(base, UniformDraw(2, 2, 3));
  EXPECT_NE(base, UniformDraw(1 | uint64_t{1} << 40, 2, 3));
  EXPECT_NE(base, UniformDraw(1, 3, 3));
  EXPECT_NE(base, UniformDraw(1, 2, 4));
}

TEST(SampleTest, GreedyTakesTheLowestIdOfTheBest) {
  EXPECT_EQ(SampleOnce(Args({1, 7, 7, -3}, 0)).token, 1);
  EXPECT_EQ(SampleOnce(Args({-0.0f, 0.0f, -1}, 0)).token, 0);
}

TEST(SampleTest, PenaltiesAndBiasFollowTheDefinition) {
  const std::vector<float> logits = {4, 3.5f, 3, -1};
  SamplingArgs args = Args(logits, 0);
  std::vector<SamplingTokenCount> counts = {{0, 0, true}};
  args.counts = counts;
  args.presence_penalty = args.frequency_penalty = 2;
  EXPECT_EQ(SampleOnce(args).token, 0) << "presence and frequency count the output only";
  args.repetition_penalty = 2;
  EXPECT_EQ(SampleOnce(args).token, 1) << "repetition counts the prompt";
  args.repetition_penalty = 1;
  counts = {{0, 1, false}, {1, 0, true}};
  args.counts = counts;
  args.frequency_penalty = 0;
  EXPECT_EQ(SampleOnce(args).token, 1);
  const SamplingBias biases[] = {{3, 100}, {3, 1}};
  args.biases = biases;
  EXPECT_EQ(SampleOnce(args).token, 3);
  const int32_t suppressed[] = {3, 1};
  args.suppressed_ids = suppressed;
  EXPECT_EQ(SampleOnce(args).token, 2);
}

TEST(SampleTest, HostileInputIsAStatus) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  for (float bad : {nan, inf, -inf})
    EXPECT_EQ(SampleOnce(Args({1, bad, 2}, 1)).status, SampleStatus::kNotFinite);
  const std::vector<float> logits = {1, 2};
  const int32_t all[] = {0, 1}, outside[] = {2}, negative[] = {-1};
  SamplingArgs args = Args(logits, 1);
  args.suppressed_ids = all;
  EXPECT_EQ(SampleOnce(args).status, SampleStatus::kNoCandidate);
  args.suppressed_ids = outside;
  EXPECT_EQ(SampleOnce(args).status, SampleStatus::kBadToken);
  args.suppressed_ids = negative;
  EXPECT_EQ(SampleOnce(args).status, SampleStatus::kBadToken);
  args.suppressed_ids = {};
  const SamplingBias biases[] = {{0, nan}};
  args.biases = biases;
  EXPECT_EQ(SampleOnce(args).status, SampleStatus::kNotFinite);
  EXPECT_EQ(SampleOnce(Args({}, 1)).status, SampleStatus::kNoCandidate);
}

TEST(SampleTest, ExtremeParametersStillGiveAToken) {
  const std::vector<float> logits = {3e38f, -3e38f, 1, 2};
  for (float temperature : {1e-45f, 1e-6f, 1.0f, 3e38f}) {
    SamplingArgs args = Args(logits, temperature);
    args.top_k = 1000;
    args.top_p = 1e-30f;
    args.min_p = 1;
    EXPECT_EQ(SampleOnce(args).status, SampleStatus::kOk);
    EXPECT_EQ(SampleOnce(args).token, 0);
  }
}

// Every position is a new draw; with all filters the counts must follow the reference's
// distribution.
TEST(SampleTest, DrawsFollowTheDistribution) {
  TestRandom random(51);
  for (int trial = 0; trial < 60; ++trial) {
    const int vocab = random.Int(1, 60);
    std::vector<float> logits = random.Normals(vocab, 2);
    if (trial % 4 == 0) {
      for (float& x : logits) x = std::round(x);
    }
    SamplingArgs args = Args(logits, trial % 3 == 0 ? 0.6f : 1.3f);
    if (trial % 2) args.top_k = random.Int(1, vocab + 5);
    if (trial % 5 < 3) args.top_p = 0.1f * random.Int(1, 9) + 0.0437f;
    if (trial % 7 < 3) args.min_p = 0.01f * random.Int(1, 60);
    args.repetition_penalty = 1.1f;
    args.frequency_penalty = 0.3f;
    args.presence_penalty = -0.2f;
    std::vector<SamplingTokenCount> counts = {{0, 2, true}, {vocab / 2, 1, false}};
    if (vocab > 1) args.counts = counts;
    std::vector<int32_t> suppressed = {vocab - 1};
    if (vocab > 3) args.suppressed_ids = suppressed;
    args.seed = 1000 + trial;
    const std::vector<double> p = Reference(args);
    const int draws = 4000;
    std::vector<int> seen(vocab);
    for (int i = 0; i < draws; ++i) {
      args.position = i;
      Result result = SampleOnce(args);
      ASSERT_EQ(result.status, SampleStatus::kOk);
      ++seen[result.token];
    }
    double chi_square = 0;
    int cells = 0;
    for (int id = 0; id < vocab; ++id) {
      if (p[id] == 0) {
        ASSERT_EQ(seen[id], 0) << "trial " << trial
                               << ": a token was drawn that the filters exclude";
      } else {
        chi_square += std::pow(seen[id] - draws * p[id], 2) / (draws * p[id]);
        ++cells;
      }
    }
    // Mean cells - 1, variance 2 (cells - 1) and more for rare cells; fixed seeds make this a
    // constant.
    EXPECT_LT(chi_square, cells + 5 * std::sqrt(2.0 * cells) + 10) << "trial " << trial;
  }
}

TEST(SampleTest, ALargeVocabularyUsesTheSameFilters) {
  TestRandom random(52);
  const int vocab = 50000;
  for (int trial = 0; trial < 12; ++trial) {
    std::vector<float> logits = random.Normals(vocab, trial % 2 ? 0.1f : 4);
    SamplingArgs args = Args(logits, 1);
    args.top_k = trial % 3 == 0 ? 20000 : 0;
    args.top_p = trial % 4 < 2 ? 0.9f : 0.3f;
    const std::vector<double> p = Reference(args);
    for (int i = 0; i < 20; ++i) {
      args.position = i;
      EXPECT_GT(p[SampleOnce(args).token], 0);
    }
  }
}

TEST(SampleTest, TheDrawIsAFunctionOfSeedChoiceAndPosition) {
  TestRandom random(53);
  std::vector<float> logits = random.Normals(500);
  SamplingArgs args = Args(logits, 1);
  args.seed = 7;
  std::map<int32_t, int> tokens;
  for (uint32_t choice = 0; choice < 4; ++choice) {
    for (uint32_t position = 0; position < 4; ++position) {
      args.choice = choice;
      args.position = position;
      EXPECT_EQ(SampleOnce(args).token, SampleOnce(args).token);
      ++tokens[SampleOnce(args).token];
    }
  }
  EXPECT_GT(tokens.size(), 12u);
}

TEST(TokenLogprobsTest, EqualTheReferenceAndListTheBest) {
  TestRandom random(54);
  for (int trial = 0; trial < 100; ++trial) {
    const int vocab = random.Int(1, 300), top_n = random.Int(0, 20),
              token = random.Int(0, vocab - 1);
    std::vector<float> logits = random.Normals(vocab, trial % 3 ? 3 : 60);
    if (trial % 4 == 0) {
      for (float& x : logits) x = std::round(x);
    }
    float logprob = 0;
    std::vector<ScoredToken> top(std::min(top_n, vocab));
    ASSERT_EQ(TokenLogprobs(logits.data(), vocab, token, top_n, &logprob, top.data()),
              SampleStatus::kOk);
    long double total = 0;
    for (float x : logits) total += std::exp((long double)x);
    const auto expect_logprob = [&](float got, int32_t id) {
      const double want = double(logits[id] - std::log(total));
      EXPECT_NEAR(got, want, 1e-12 + std::abs(want) * 0x1p-24);
    };
    expect_logprob(logprob, token);
    std::vector<int32_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int x, int y) { return logits[x] > logits[y]; });
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_EQ(top[i].token_id, order[i]);
      expect_logprob(top[i].logprob, order[i]);
    }
  }
}

TEST(TokenLogprobsTest, HostileInputIsAStatus) {
  float logprob = 0;
  const float logits[] = {1, std::numeric_limits<float>::infinity()};
  EXPECT_EQ(TokenLogprobs(logits, 2, 0, 0, &logprob, nullptr), SampleStatus::kNotFinite);
  EXPECT_EQ(TokenLogprobs(logits, 1, 1, 0, &logprob, nullptr), SampleStatus::kBadToken);
}

}  // namespace
}  // namespace kt
