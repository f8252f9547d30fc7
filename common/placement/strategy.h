// SPDX-License-Identifier: Apache-2.0
// The placements that a run can start with (--kt-expert-placement-strategy).
#ifndef KT_COMMON_PLACEMENT_STRATEGY_H_
#define KT_COMMON_PLACEMENT_STRATEGY_H_

#include <string>
#include <vector>

#include "common/placement/placement.h"

namespace kt {

inline constexpr uint64_t kPlacementSeed = 42;

enum class PlacementStrategy {
  kUniform,       // the lowest ids, equally many in each layer; what is left over goes to the first
  kFrontLoading,  // layer after layer, each completely
  kRandom,        // drawn from all experts of all layers, reproducibly
  kFrequency,     // the most used of all experts of all layers, ties to the lower layer and id
};

// InvalidArgument: another name than uniform, front-loading, random, frequency.
absl::StatusOr<PlacementStrategy> ParsePlacementStrategy(const std::string& name);

// Routed experts of all layers together.
int64_t TotalExperts(const ModelConfig& config);

// Places `count` experts, all of them where that is more than there are. `use` is what frequency
// goes by, [layer][expert], and must fit the model (CheckShape of expert_counts.h does that).
Placement PlaceExperts(PlacementStrategy strategy, int64_t count, const ModelConfig& config,
                       const std::vector<std::vector<double>>& use = {},
                       uint64_t seed = kPlacementSeed);

}  // namespace kt

#endif  // KT_COMMON_PLACEMENT_STRATEGY_H_
