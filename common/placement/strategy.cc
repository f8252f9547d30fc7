// SPDX-License-Identifier: Apache-2.0
#include "common/placement/strategy.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/sim/rng.h"

namespace kt {
namespace {

struct Position {
  size_t layer;
  int expert;
};

// By rank within the layers: expert 0 of every layer, then expert 1, ...
std::vector<Position> ByExpert(const ModelConfig& config) {
  std::vector<Position> order;
  const auto total = static_cast<size_t>(TotalExperts(config));
  for (int e = 0; order.size() < total; ++e) {
    for (size_t l = 0; l < config.layers.size(); ++l) {
      if (e < ExpertsOf(config, l)) order.push_back({l, e});
    }
  }
  return order;
}

std::vector<Position> ByLayer(const ModelConfig& config) {
  std::vector<Position> order;
  for (size_t l = 0; l < config.layers.size(); ++l) {
    for (int e = 0; e < ExpertsOf(config, l); ++e) order.push_back({l, e});
  }
  return order;
}

// The order in which a strategy spends the places of the device.
std::vector<Position> Order(PlacementStrategy strategy, const ModelConfig& config,
                            const std::vector<std::vector<double>>& use, uint64_t seed) {
  if (strategy == PlacementStrategy::kUniform) return ByExpert(config);
  std::vector<Position> order = ByLayer(config);
  if (strategy == PlacementStrategy::kRandom) {
    Rng rng(seed);
    for (size_t left = order.size(); left > 1; --left)
      std::swap(order[left - 1], order[rng.Next() % left]);
  } else if (strategy == PlacementStrategy::kFrequency) {
    std::stable_sort(order.begin(), order.end(), [&](const Position& a, const Position& b) {
      return use[a.layer][static_cast<size_t>(a.expert)] >
             use[b.layer][static_cast<size_t>(b.expert)];
    });
  }
  return order;
}

}  // namespace

absl::StatusOr<PlacementStrategy> ParsePlacementStrategy(const std::string& name) {
  if (name == "uniform") return PlacementStrategy::kUniform;
  if (name == "front-loading") return PlacementStrategy::kFrontLoading;
  if (name == "random") return PlacementStrategy::kRandom;
  if (name == "frequency") return PlacementStrategy::kFrequency;
  return InvalidArgument(
      "--kt-expert-placement-strategy {}: must be one of uniform, front-loading, random, frequency",
      name);
}

int64_t TotalExperts(const ModelConfig& config) {
  int64_t total = 0;
  for (size_t l = 0; l < config.layers.size(); ++l) total += ExpertsOf(config, l);
  return total;
}

Placement PlaceExperts(PlacementStrategy strategy, int64_t count, const ModelConfig& config,
                       const std::vector<std::vector<double>>& use, uint64_t seed) {
  Placement placement;
  placement.device.resize(config.layers.size());
  std::vector<Position> order = Order(strategy, config, use, seed);
  order.resize(static_cast<size_t>(std::min<int64_t>(count, TotalExperts(config))));
  for (const Position& p : order) placement.device[p.layer].push_back(p.expert);
  for (std::vector<int>& set : placement.device) std::sort(set.begin(), set.end());
  return placement;
}

}  // namespace kt
