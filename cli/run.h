// SPDX-License-Identifier: Apache-2.0
// What `kt run` does before its processes exist.
#ifndef KT_CLI_RUN_H_
#define KT_CLI_RUN_H_

#include <string>

#include "cli/flags.h"
#include "proto/config.pb.h"

namespace kt::cli {

struct ConfigError {
  int exit_code;
  std::string message;
};
// Flags → checked configuration (runtime_dir empty), with the log set up and all notes and warnings
// logged. On failure *error says why and false is returned.
bool ReadConfig(RunFlags& flags, RunOptions* options, proto::RuntimeConfig* config,
                ConfigError* error);
// The same for what is to be started: refused where it would not fit into memory. Also the way of
// other commands that start the processes "as run would with these flags".
bool ConfigureRun(RunFlags& flags, RunOptions* options, proto::RuntimeConfig* config,
                  ConfigError* error);

// Replaces this process by kt-node; returns the exit code if that fails or nothing is to be
// started.
int RunMain(RunFlags& flags);

}  // namespace kt::cli

#endif  // KT_CLI_RUN_H_
