// SPDX-License-Identifier: Apache-2.0
// How a model routes the golden prompts in float32, against which a run in bf16 is held: rounding
// flips near-ties of a router, which moves the logits of that position by far more than rounding
// itself does.
#ifndef KT_CLI_SELFTEST_REFERENCE_ROUTING_H_
#define KT_CLI_SELFTEST_REFERENCE_ROUTING_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/selftest/golden.h"
#include "cli/selftest/trace_client.h"

namespace kt {

// By prompt and layer: expert ids [positions, k] of the prompt and its golden continuation.
using ReferenceRouting = std::map<std::string, std::map<int, std::vector<int32_t>>>;

// `client`: of a system that runs the model in float32.
absl::StatusOr<ReferenceRouting> TraceRouting(const Golden& golden, TraceClient& client);

// For each position of the trace the first layer that chose other experts there than `reference`.
absl::StatusOr<std::vector<std::optional<int>>> FlippedLayers(
    const std::map<int, std::vector<int32_t>>& reference, const Trace& trace, size_t positions);

}  // namespace kt

#endif  // KT_CLI_SELFTEST_REFERENCE_ROUTING_H_
