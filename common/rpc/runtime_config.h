// SPDX-License-Identifier: Apache-2.0
// The configuration of a run as a JSON file: written by `kt run`, read by kt-coordinator, which
// hands it to the workers.
#ifndef KT_COMMON_RPC_RUNTIME_CONFIG_H_
#define KT_COMMON_RPC_RUNTIME_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"

namespace kt {

inline constexpr char kRuntimeConfigName[] = "runtime_config.json";  // in the runtime directory

// Every field, names as in config.proto. `with_secrets` false: the API key is shown as "***".
std::string RuntimeConfigToJson(proto::RuntimeConfig config, bool with_secrets);

// NotFound or InvalidArgument with the path; unknown fields are refused.
absl::StatusOr<proto::RuntimeConfig> ReadRuntimeConfig(const std::string& path);

}  // namespace kt

#endif  // KT_COMMON_RPC_RUNTIME_CONFIG_H_
