// SPDX-License-Identifier: Apache-2.0
// From a configuration to running processes.
#ifndef KT_CLI_LAUNCH_H_
#define KT_CLI_LAUNCH_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "node/spec.h"
#include "proto/config.pb.h"

namespace kt::cli {

// Folder of the running program: the other programs lie beside it.
std::string ProgramDir();

// CLOCK_MONOTONIC, ns.
int64_t MonotonicNs();

// The processes of a run, for kt-node. `config.runtime_dir()` is where the coordinator finds its
// configuration.
NodeSpec MakeNodeSpec(const proto::RuntimeConfig& config, const std::string& program_dir,
                      int64_t started_ns);

struct Launch {
  std::string runtime_dir;  // with runtime_config.json and node.json in it
  std::string program;      // kt-node
  std::string spec_path;    // program --spec spec_path
};

// Creates the runtime directory, which kt-node removes at its end, and writes the files into it.
absl::StatusOr<Launch> PrepareLaunch(proto::RuntimeConfig config, int64_t started_ns);

// Becomes kt-node. Returns only on failure, with the runtime directory removed.
absl::Status ExecNode(const Launch& launch);

}  // namespace kt::cli

#endif  // KT_CLI_LAUNCH_H_
