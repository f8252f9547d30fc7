// SPDX-License-Identifier: Apache-2.0
#include "common/model/placement.h"

#include <algorithm>
#include <numeric>

namespace kt {
namespace {

int NumExperts(const ModelConfig& config, size_t layer) {
  const LayerConfig& l = config.layers[layer];
  return l.moe ? config.moes[static_cast<size_t>(*l.moe)].num_experts : 0;
}

}  // namespace

std::vector<std::vector<int>> Placement::CpuExperts(const ModelConfig& config) const {
  std::vector<std::vector<int>> sets(config.layers.size());
  for (size_t l = 0; l < sets.size(); ++l) {
    for (int e = 0; e < NumExperts(config, l); ++e) {
      if (!std::binary_search(device[l].begin(), device[l].end(), e)) sets[l].push_back(e);
    }
  }
  return sets;
}

Placement UniformPlacement(const ModelConfig& config, int experts_per_layer) {
  Placement placement;
  placement.device.resize(config.layers.size());
  for (size_t l = 0; l < placement.device.size(); ++l) {
    placement.device[l].resize(
        static_cast<size_t>(std::min(experts_per_layer, NumExperts(config, l))));
    std::iota(placement.device[l].begin(), placement.device[l].end(), 0);
  }
  return placement;
}

}  // namespace kt
