// SPDX-License-Identifier: Apache-2.0
#include "common/placement/placement_heat.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace kt {
namespace {

constexpr double kPinned = 1e30;  // more than any count
// In half-lives of all layers: hits lost before the initial residents are asked back, and for how
// long at first.
constexpr double kLossMax = 0.02;
constexpr double kFirstHold = 8;

double Hits(std::span<const uint32_t> counts, std::span<const int> residents) {
  double hits = 0;
  for (int e : residents) hits += counts[static_cast<size_t>(e)];
  return hits;
}

}  // namespace

PlacementHeat::PlacementHeat(const ModelConfig& config, Placement initial, UpdatePolicy policy)
    : policy_(policy), initial_(std::move(initial)) {
  for (size_t l = 0; l < config.layers.size(); ++l) {
    heat_.emplace_back(static_cast<size_t>(ExpertsOf(config, l)));
    moe_layers_ += heat_.back().empty() ? 0 : 1;
  }
  hold_next_ = kFirstHold * policy_.half_life * moe_layers_;
}

void PlacementHeat::CountHybrid(int layer, std::span<const uint32_t> counts,
                                std::span<const int> residents) {
  CountLayerwise(layer, counts);
  const double choices = std::accumulate(counts.begin(), counts.end(), 0.0);
  if (holding()) {
    hold_left_ = std::max(0.0, hold_left_ - choices);
    return;
  }
  advantage_ *= std::exp2(-choices / (policy_.half_life * moe_layers_));
  Judge(Hits(counts, residents) - Hits(counts, initial_.device[static_cast<size_t>(layer)]));
}

void PlacementHeat::CountLayerwise(int layer, std::span<const uint32_t> counts) {
  AddCounts(counts, policy_, heat_[static_cast<size_t>(layer)]);
}

void PlacementHeat::CountChanges(int changes) {
  if (!holding()) Judge(-policy_.swap_cost * changes);
}

void PlacementHeat::Judge(double advantage) {
  advantage_ += advantage;
  if (advantage_ >= -kLossMax * policy_.half_life * moe_layers_) return;
  advantage_ = 0;
  hold_left_ = hold_next_;
  hold_next_ *= 2;
}

std::vector<double> PlacementHeat::heat(int layer) const {
  std::vector<double> heat = heat_[static_cast<size_t>(layer)];
  if (holding()) {
    for (int e : initial_.device[static_cast<size_t>(layer)])
      heat[static_cast<size_t>(e)] = kPinned;
  }
  return heat;
}

std::vector<std::vector<double>> PlacementHeat::heat() const {
  std::vector<std::vector<double>> all;
  for (size_t l = 0; l < heat_.size(); ++l) all.push_back(heat(static_cast<int>(l)));
  return all;
}

}  // namespace kt
