// SPDX-License-Identifier: Apache-2.0
#ifndef KT_CLI_RUNTIME_DIR_H_
#define KT_CLI_RUNTIME_DIR_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kt::cli {

// Private directories of runs: "kt-<uid>-XXXXXX" (0700) under $XDG_RUNTIME_DIR where that is a
// short, writable path, else /tmp; at most 80 bytes, so that socket paths in them are short enough.
// Removed by kt-node at the end of the run.
absl::StatusOr<std::string> CreateRuntimeDir();

// This user's directories with a node's socket in them, live or not.
std::vector<std::string> FindRuntimeDirs();

// Removes the directories of runs whose node was killed: nobody listens on their socket.
void RemoveDeadRuntimeDirs();

}  // namespace kt::cli

#endif  // KT_CLI_RUNTIME_DIR_H_
