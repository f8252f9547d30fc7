// SPDX-License-Identifier: Apache-2.0
// Which experts live on the device; all others live on the CPU expert workers alone.
#ifndef KT_COMMON_PLACEMENT_PLACEMENT_H_
#define KT_COMMON_PLACEMENT_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "proto/config.pb.h"

namespace kt {

struct Placement {
  uint64_t version = 1;
  // For every layer of the model the resident experts, ascending; empty for dense layers.
  std::vector<std::vector<int>> device;

  // The rest of each layer's experts, ascending.
  std::vector<std::vector<int>> CpuExperts(const ModelConfig& config) const;
};

// Routed experts of a layer; 0: it is dense.
int ExpertsOf(const ModelConfig& config, size_t layer);

// The placement that a run starts with, of version 1: every process takes it from here.
// InvalidArgument names layer and expert that the model has not, or that are there twice or out of
// order.
absl::StatusOr<Placement> InitialPlacement(const proto::ExpertOptions& options,
                                           const ModelConfig& config);

// The inverse: replaces the residents of `options`.
void SetResidents(const Placement& placement, proto::ExpertOptions* options);

}  // namespace kt

#endif  // KT_COMMON_PLACEMENT_PLACEMENT_H_
