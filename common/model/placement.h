// SPDX-License-Identifier: Apache-2.0
// Which experts live on the device; all others live on the CPU expert workers.
#ifndef KT_COMMON_MODEL_PLACEMENT_H_
#define KT_COMMON_MODEL_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "common/model/model_config.h"

namespace kt {

struct Placement {
  uint64_t version = 1;
  // For every layer of the model the resident experts, ascending; empty for dense layers.
  std::vector<std::vector<int>> device;

  // The rest of each layer's experts, ascending.
  std::vector<std::vector<int>> CpuExperts(const ModelConfig& config) const;
};

// The same number of residents in every MoE layer, experts 0 to n - 1; more than a layer has means
// all of them.
Placement UniformPlacement(const ModelConfig& config, int experts_per_layer);

}  // namespace kt

#endif  // KT_COMMON_MODEL_PLACEMENT_H_
