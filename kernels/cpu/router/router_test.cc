// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/router/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "kernels/cpu/simd/testing.h"

namespace kt {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(RouterLogitsTest, EveryRowOfTheTableEqualsTheReference) {
  TestRandom random(41);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 160; ++trial) {
      const int tokens = random.Int(0, 5), experts = random.Int(1, 21), hidden = random.Int(1, 300);
      const bool x_is_bf16 = trial & 1, weight_is_bf16 = trial & 2;
      const int64_t x_stride = hidden + random.Int(0, 5),
                    logits_stride = experts + random.Int(0, 5);
      Activations x(random.Normals(tokens * x_stride), x_is_bf16),
          weight(random.Normals(experts * hidden), weight_is_bf16);
      std::vector<float> logits(tokens * logits_stride, 99.0f);
      RouterLogits(isa, {x.data(), x_stride, weight.data(), logits.data(), logits_stride, tokens,
                         experts, hidden, x_is_bf16, weight_is_bf16});
      for (int t = 0; t < tokens; ++t) {
        for (int e = 0; e < logits_stride; ++e) {
          if (e >= experts) {
            ASSERT_EQ(logits[t * logits_stride + e], 99.0f) << "wrote beyond the row";
            continue;
          }
          double want = 0, magnitude = 0;
          for (int i = 0; i < hidden; ++i) {
            double product = double(x.At(t * x_stride + i)) * weight.At(e * hidden + i);
            want += product, magnitude += std::abs(product);
          }
          ASSERT_NEAR(logits[t * logits_stride + e], want, magnitude * (hidden / 4 + 6) * 0x1p-23);
        }
      }
    }
  }
}

TEST(RouterLogitsTest, ALogitDependsOnItsTokenAndExpertOnly) {
  TestRandom random(42);
  const int tokens = 7, experts = 11, hidden = 133;
  Activations x(random.Normals(tokens * hidden), true),
      weight(random.Normals(experts * hidden), false);
  for (Isa isa : RunnableIsas()) {
    std::vector<float> whole(tokens * experts), alone(tokens * experts);
    RouterLogits(isa, {x.data(), hidden, weight.data(), whole.data(), experts, tokens, experts,
                       hidden, true, false});
    for (int t = 0; t < tokens; ++t) {
      for (int e = 0; e < experts; ++e) {
        RouterLogits(isa, {x.at(t * hidden), hidden, weight.at(e * hidden), &alone[t * experts + e],
                           experts, 1, 1, hidden, true, false});
      }
    }
    EXPECT_EQ(whole, alone);
  }
}

struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
Routing Route(RouterTopkArgs args) {
  Routing routing{std::vector<int32_t>(args.tokens * args.top_k, -7),
                  std::vector<float>(args.tokens * args.top_k, -7)};
  args.ids = routing.ids.data();
  args.weights = routing.weights.data();
  RouterTopk(args);
  return routing;
}

// The definition by full sorts, in double where it does not decide.
Routing Reference(const RouterTopkArgs& a) {
  Routing routing;
  for (int t = 0; t < a.tokens; ++t) {
    const float* logits = a.logits + t * a.logits_stride;
    const float max = *std::max_element(logits, logits + a.experts);
    float total = 0;
    for (int e = 0; e < a.experts; ++e) total += std::exp(logits[e] - max);
    std::vector<float> score(a.experts), choice;
    for (int e = 0; e < a.experts; ++e)
      score[e] = a.sigmoid ? 1 / (1 + std::exp(-logits[e])) : std::exp(logits[e] - max) / total;
    choice = score;
    for (int e = 0; a.correction_bias != nullptr && e < a.experts; ++e)
      choice[e] += a.correction_bias[e];
    if (a.groups > 1) {
      const int size = a.experts / a.groups;
      std::vector<std::pair<float, int>> groups;
      for (int g = 0; g < a.groups; ++g) {
        std::vector<float> sorted(choice.begin() + g * size, choice.begin() + (g + 1) * size);
        std::sort(sorted.rbegin(), sorted.rend());
        groups.push_back({-(sorted[0] + (size > 1 ? sorted[1] : 0)), g});
      }
      std::sort(groups.begin(), groups.end());
      for (int i = a.topk_groups; i < a.groups; ++i)
        std::fill_n(choice.begin() + groups[i].second * size, size, -kInf);
    }
    std::vector<int> order(a.experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int x, int y) { return choice[x] > choice[y]; });
    order.resize(a.top_k);
    std::sort(order.begin(), order.end());
    std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return score[x] > score[y]; });
    double sum = 0;
    for (int e : order) sum += score[e];
    for (int e : order) {
      routing.ids.push_back(e);
      routing.weights.push_back(
          static_cast<float>(score[e] / (a.normalize ? sum + 1e-20 : 1.0) * a.scaling_factor));
    }
  }
  return routing;
}

TEST(RouterTopkTest, EqualsTheReferenceOnRandomShapes) {
  TestRandom random(43);
  for (int trial = 0; trial < 400; ++trial) {
    const int groups = trial % 3 == 0 ? random.Int(2, 8) : 1,
              size = random.Int(1, groups > 1 ? 20 : 200), experts = groups * size;
    const int topk_groups = random.Int(1, groups),
              top_k = random.Int(1, std::min(topk_groups * size, 16)), tokens = random.Int(0, 4);
    std::vector<float> logits = random.Normals(tokens * (experts + 3), 2),
                       bias = random.Normals(experts, 0.3f);
    if (trial % 5 == 0) {
      for (float& x : logits) x = std::round(x);  // many ties
    }
    RouterTopkArgs args{logits.data(), experts + 3,   trial % 2 ? bias.data() : nullptr,
                        nullptr,       nullptr,       tokens,
                        experts,       top_k,         groups,
                        topk_groups,   trial % 4 < 2, trial % 7 < 4,
                        2.5f};
    Routing got = Route(args), want = Reference(args);
    ASSERT_EQ(got.ids, want.ids) << "trial " << trial;
    for (size_t i = 0; i < got.weights.size(); ++i)
      ASSERT_NEAR(got.weights[i], want.weights[i], std::abs(want.weights[i]) * 2e-6) << trial;
  }
}

TEST(RouterTopkTest, TiesGoToTheLowerIdAndTheBiasOnlyChooses) {
  const std::vector<float> equal(8, 0.5f);
  EXPECT_EQ(Route({equal.data(), 8, nullptr, nullptr, nullptr, 1, 8, 3}).ids,
            (std::vector<int32_t>{0, 1, 2}));
  const std::vector<float> logits = {0, 0, 0, 2}, bias = {0, 0.5f, 0.9f, 0};
  Routing routing =
      Route({logits.data(), 4, bias.data(), nullptr, nullptr, 1, 4, 2, 1, 1, true, false});
  EXPECT_EQ(routing.ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(routing.weights, (std::vector<float>{0.5f, 0.5f}));
}

TEST(RouterTopkTest, HostileLogitsGiveDistinctIdsInRange) {
  TestRandom random(44);
  const float hostile[] = {kNan, kInf, -kInf, 0, 3e38f, -3e38f, 1};
  for (int trial = 0; trial < 500; ++trial) {
    const int groups = trial % 2 ? 4 : 1, experts = 16, top_k = random.Int(1, 16);
    std::vector<float> logits(experts);
    for (float& x : logits) x = hostile[random.Int(0, trial < 20 ? 0 : 6)];
    Routing routing = Route({logits.data(), experts, nullptr, nullptr, nullptr, 1, experts, top_k,
                             groups, 2, trial % 4 < 2});
    std::set<int32_t> distinct(routing.ids.begin(), routing.ids.end());
    EXPECT_EQ(distinct.size(), size_t(top_k));
    EXPECT_GE(*distinct.begin(), 0);
    EXPECT_LT(*distinct.rbegin(), experts);
  }
}

}  // namespace
}  // namespace kt
