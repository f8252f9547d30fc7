// SPDX-License-Identifier: Apache-2.0
#include "common/placement/placement.h"

#include <algorithm>

#include "common/base/status.h"

namespace kt {

int ExpertsOf(const ModelConfig& config, size_t layer) {
  const LayerConfig& l = config.layers[layer];
  return l.moe ? config.moes[static_cast<size_t>(*l.moe)].num_experts : 0;
}

std::vector<std::vector<int>> Placement::CpuExperts(const ModelConfig& config) const {
  std::vector<std::vector<int>> sets(config.layers.size());
  for (size_t l = 0; l < sets.size(); ++l) {
    for (int e = 0; e < ExpertsOf(config, l); ++e) {
      if (!std::binary_search(device[l].begin(), device[l].end(), e)) sets[l].push_back(e);
    }
  }
  return sets;
}

absl::StatusOr<Placement> InitialPlacement(const proto::ExpertOptions& options,
                                           const ModelConfig& config) {
  Placement placement;
  placement.device.resize(config.layers.size());
  int next_layer = 0;
  for (const proto::LayerResidents& set : options.residents()) {
    const int layers = static_cast<int>(config.layers.size());
    if (set.layer() < next_layer || set.layer() >= layers) {
      return InvalidArgument("experts.residents: layer {}, expected one from {} to {}", set.layer(),
                             next_layer, layers - 1);
    }
    const int experts = ExpertsOf(config, static_cast<size_t>(set.layer()));
    int next = 0;
    for (int expert : set.experts()) {
      if (expert < next || expert >= experts) {
        return InvalidArgument(
            "experts.residents: expert {} of layer {}, expected one from {} to {} in ascending "
            "order",
            expert, set.layer(), next, experts - 1);
      }
      next = expert + 1;
    }
    placement.device[static_cast<size_t>(set.layer())].assign(set.experts().begin(),
                                                              set.experts().end());
    next_layer = set.layer() + 1;
  }
  return placement;
}

void SetResidents(const Placement& placement, proto::ExpertOptions* options) {
  options->clear_residents();
  for (size_t l = 0; l < placement.device.size(); ++l) {
    if (placement.device[l].empty()) continue;
    proto::LayerResidents* set = options->add_residents();
    set->set_layer(static_cast<int32_t>(l));
    set->mutable_experts()->Add(placement.device[l].begin(), placement.device[l].end());
  }
}

}  // namespace kt
