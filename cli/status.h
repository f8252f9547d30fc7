// SPDX-License-Identifier: Apache-2.0
// `kt status`: what runs on this machine, from the nodes' sockets and the servers' /health.
#ifndef KT_CLI_STATUS_H_
#define KT_CLI_STATUS_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/base/json.h"

namespace kt::cli {

struct StatusOptions {
  std::string runtime_dir;  // empty: all runs of this user
  bool json = false;
};

// One run: {"runtime_dir", "node": ProcessesJson of the node, "health": body of /health?verbose=1
// or a text why there is none}.
absl::StatusOr<Json> ReadRunStatus(const std::string& runtime_dir);

// The same for people.
std::string RunStatusText(const Json& status);

// Exit code 0 if every run found is serving; 1 if one is not, or none is found.
int StatusMain(const StatusOptions& options);

}  // namespace kt::cli

#endif  // KT_CLI_STATUS_H_
