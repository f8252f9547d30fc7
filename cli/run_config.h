// SPDX-License-Identifier: Apache-2.0
#ifndef KT_CLI_RUN_CONFIG_H_
#define KT_CLI_RUN_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/run_options.h"
#include "common/model/model_config.h"
#include "common/topology/cpu_budget.h"
#include "common/topology/topology.h"
#include "proto/config.pb.h"

namespace kt::cli {

// The one configuration of a run: every choice that the flags leave open is made here, every value
// checked against the model and the machine. runtime_dir is left empty. InvalidArgument: one
// sentence with flag, value and what is allowed.
absl::StatusOr<proto::RuntimeConfig> BuildRuntimeConfig(const RunOptions& options,
                                                        const ModelConfig& model,
                                                        const topology::Topology& topology,
                                                        const topology::CpuBudget& budget);

// Things a user should know that stop nothing, to be logged at start.
std::vector<std::string> StartWarnings(const proto::RuntimeConfig& config);

}  // namespace kt::cli

#endif  // KT_CLI_RUN_CONFIG_H_
