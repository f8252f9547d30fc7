// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/router/router.h"

namespace kt {
namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();

void Scores(const float* logits, int experts, bool sigmoid, float* score) {
  if (sigmoid) {
    for (int e = 0; e < experts; ++e) score[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    return;
  }
  const float max = *std::max_element(logits, logits + experts);
  float sum = 0;
  for (int e = 0; e < experts; ++e) sum += score[e] = std::exp(logits[e] - max);
  for (int e = 0; e < experts; ++e) score[e] /= sum;
}

// Index of the largest value that is not taken, the lower one of equals; -1 where all are taken.
int Best(const float* values, const bool* taken, int n) {
  int best = -1;
  for (int i = 0; i < n; ++i) {
    if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
  }
  return best;
}

void DropGroups(const RouterTopkArgs& a, float* choice) {
  const int size = a.experts / a.groups;
  float group_score[kRouterExpertsMax];
  bool kept[kRouterExpertsMax] = {};
  for (int g = 0; g < a.groups; ++g) {
    float first = kOut, second = size > 1 ? kOut : 0;
    for (const float* c = choice + g * size; c < choice + (g + 1) * size; ++c) {
      if (*c > first) {
        second = size > 1 ? first : 0;
        first = *c;
      } else if (*c > second && size > 1) {
        second = *c;
      }
    }
    group_score[g] = std::isnan(first + second) ? kOut : first + second;
  }
  for (int i = 0; i < std::min(a.topk_groups, a.groups); ++i)
    kept[Best(group_score, kept, a.groups)] = true;
  for (int e = 0; e < a.experts; ++e) {
    if (!kept[e / size]) choice[e] = kOut;
  }
}

void RouteToken(const RouterTopkArgs& a, const float* logits, int32_t* ids, float* weights) {
  float score[kRouterExpertsMax], choice[kRouterExpertsMax];
  bool taken[kRouterExpertsMax] = {};
  Scores(logits, a.experts, a.sigmoid, score);
  for (int e = 0; e < a.experts; ++e) {
    choice[e] = a.correction_bias == nullptr ? score[e] : score[e] + a.correction_bias[e];
    if (std::isnan(choice[e])) choice[e] = kOut;
  }
  if (a.groups > 1) DropGroups(a, choice);
  for (int k = 0; k < a.top_k; ++k) {
    ids[k] = Best(choice, taken, a.experts);
    taken[ids[k]] = true;
  }
  std::sort(ids, ids + a.top_k, [&](int32_t x, int32_t y) {
    const float sx = std::isnan(score[x]) ? kOut : score[x],
                sy = std::isnan(score[y]) ? kOut : score[y];
    return sx != sy ? sx > sy : x < y;
  });
  float sum = 0;
  for (int k = 0; k < a.top_k; ++k) sum += score[ids[k]];
  const float denominator = a.normalize ? sum + 1e-20f : 1.0f;
  for (int k = 0; k < a.top_k; ++k) weights[k] = score[ids[k]] / denominator * a.scaling_factor;
}

}  // namespace

void RouterTopk(const RouterTopkArgs& args) noexcept {
  for (int t = 0; t < args.tokens; ++t) {
    RouteToken(args, args.logits + t * args.logits_stride, args.ids + int64_t{t} * args.top_k,
               args.weights + int64_t{t} * args.top_k);
  }
}

}  // namespace kt
