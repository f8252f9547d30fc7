// SPDX-License-Identifier: Apache-2.0
// What `kt run` and its relatives check of a model before any process is started.
#ifndef KT_CLI_MODEL_CHECK_H_
#define KT_CLI_MODEL_CHECK_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"

namespace kt::cli {

// config.json and generation_config.json of the directory.
absl::StatusOr<ModelConfig> CheckModelDir(const std::string& dir);

// Headers of all weights: those of `dir` against its config.json, and the CPU experts' in
// `weight_path` (may be the same) against that of `dir`. Returns the kt-method that the experts'
// format asks for.
absl::StatusOr<std::string> CheckWeights(const std::string& dir, const ModelConfig& model,
                                         const std::string& weight_path);

}  // namespace kt::cli

#endif  // KT_CLI_MODEL_CHECK_H_
