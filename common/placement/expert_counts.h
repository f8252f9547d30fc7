// SPDX-License-Identifier: Apache-2.0
// Recorded use of experts, read from files of this runtime (docs/formats/expert_counts.md) and of
// PyTorch.
#ifndef KT_COMMON_PLACEMENT_EXPERT_COUNTS_H_
#define KT_COMMON_PLACEMENT_EXPERT_COUNTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/json.h"
#include "common/model/model_config.h"

namespace kt {

// How often each expert was chosen, [layer][expert], dense layers included. At least one layer, all
// of the same size; finite and not negative.
using ExpertCounts = std::vector<std::vector<double>>;

// The readers below take the numbers as [layers, experts] or [passes, layers, experts], summed over
// passes. InvalidArgument: says what is there and what is expected.

// Reads `path`, a .json or .pt file by its contents. Messages begin with the path.
absl::StatusOr<ExpertCounts> ReadExpertCounts(const std::string& path);
// An object with the numbers under "logical_count".
absl::StatusOr<ExpertCounts> JsonExpertCounts(const Json& json);
// What torch.save writes of a tensor, or of a dict with one under "logical_count": int64, int32,
// float64 or float32, of any strides. No code in it is ever run.
absl::StatusOr<ExpertCounts> TorchExpertCounts(std::span<const uint8_t> bytes);

// InvalidArgument with both shapes: `counts` are of another model. Layers without experts may have
// any counts.
absl::Status CheckShape(const ExpertCounts& counts, const ModelConfig& config);

}  // namespace kt

#endif  // KT_COMMON_PLACEMENT_EXPERT_COUNTS_H_
