// SPDX-License-Identifier: Apache-2.0
// Flags given as `auto`: the largest values with which everything fits into memory.
#ifndef KT_CLI_AUTO_LIMITS_H_
#define KT_CLI_AUTO_LIMITS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/run_options.h"
#include "common/model/model_config.h"

namespace kt::cli {

bool HasAutomatic(const RunOptions& options);
// The least values in the place of kAutomatic.
RunOptions WithLeast(const RunOptions& options);

// Replaces every kAutomatic, in the order in which requests need them: what a step takes, how many
// run, their cache, and what is left goes to experts on the device. `fits` answers for options
// without kAutomatic, and memory grows with each of them. Where not even the least values fit,
// those are left, to be refused by the plan. Returns a line for each choice; errors are those of
// `fits`.
absl::StatusOr<std::vector<std::string>> ChooseAutomatic(
    const ModelConfig& model, const std::function<absl::StatusOr<bool>(const RunOptions&)>& fits,
    RunOptions& options);

}  // namespace kt::cli

#endif  // KT_CLI_AUTO_LIMITS_H_
