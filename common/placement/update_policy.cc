// SPDX-License-Identifier: Apache-2.0
#include "common/placement/update_policy.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kt {
namespace {

struct Change {
  int in, out;
  double gain;
};

double HeatOf(std::span<const double> heat, int expert) {
  return heat[static_cast<size_t>(expert)];
}

// Greatest gain first.
std::vector<Change> Changes(std::span<const double> heat, std::span<const int> current,
                            const UpdatePolicy& policy) {
  std::vector<int> in, out(current.begin(), current.end());
  for (int e = 0; e < static_cast<int>(heat.size()); ++e) {
    if (!std::binary_search(current.begin(), current.end(), e)) in.push_back(e);
  }
  // The lower id is the better one to hold: first to come in, last to go out.
  std::stable_sort(in.begin(), in.end(),
                   [&](int a, int b) { return HeatOf(heat, a) > HeatOf(heat, b); });
  std::reverse(out.begin(), out.end());
  std::stable_sort(out.begin(), out.end(),
                   [&](int a, int b) { return HeatOf(heat, a) < HeatOf(heat, b); });
  std::vector<Change> changes;
  for (size_t i = 0; i < std::min(in.size(), out.size()); ++i) {
    const double hot = HeatOf(heat, in[i]), cold = HeatOf(heat, out[i]);
    const double margin =
        policy.hysteresis * cold + policy.sigmas * std::sqrt(hot + cold) + policy.swap_cost;
    if (hot - cold <= margin) break;  // the next ones have less to gain
    changes.push_back({in[i], out[i], hot - cold});
  }
  return changes;
}

void Exchange(int in, int out, std::vector<int>* set) {
  set->erase(std::lower_bound(set->begin(), set->end(), out));
  set->insert(std::lower_bound(set->begin(), set->end(), in), in);
}

}  // namespace

void AddCounts(std::span<const uint32_t> counts, const UpdatePolicy& policy,
               std::span<double> heat) {
  const double choices = std::accumulate(counts.begin(), counts.end(), 0.0);
  const double age = std::exp2(-choices / policy.half_life);
  for (size_t e = 0; e < heat.size(); ++e) heat[e] = heat[e] * age + counts[e];
}

std::vector<int> ChooseResidents(std::span<const double> heat, std::span<const int> current,
                                 const UpdatePolicy& policy) {
  std::vector<int> set(current.begin(), current.end());
  for (const Change& c : Changes(heat, current, policy)) Exchange(c.in, c.out, &set);
  return set;
}

std::vector<Promotion> ChoosePromotions(const std::vector<std::vector<double>>& heat,
                                        const Placement& current,
                                        std::span<const int64_t> expert_bytes, int64_t byte_budget,
                                        const UpdatePolicy& policy) {
  struct Candidate {
    Promotion promotion;
    double gain;
  };
  std::vector<Candidate> candidates;
  for (size_t l = 0; l < current.device.size(); ++l) {
    for (const Change& c : Changes(heat[l], current.device[l], policy))
      candidates.push_back({{static_cast<int>(l), c.in, c.out}, c.gain});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.gain > b.gain; });
  std::vector<Promotion> promotions;
  for (const Candidate& c : candidates) {
    const int64_t bytes = expert_bytes[static_cast<size_t>(c.promotion.layer)];
    if (bytes > byte_budget) continue;
    byte_budget -= bytes;
    promotions.push_back(c.promotion);
  }
  return promotions;
}

void ApplyPromotions(std::span<const Promotion> promotions, Placement* placement) {
  for (const Promotion& p : promotions)
    Exchange(p.in, p.out, &placement->device[static_cast<size_t>(p.layer)]);
  ++placement->version;
}

}  // namespace kt
