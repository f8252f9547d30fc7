// SPDX-License-Identifier: Apache-2.0
#ifndef KT_CLI_SELFTEST_COMMAND_H_
#define KT_CLI_SELFTEST_COMMAND_H_

#include <CLI/CLI.hpp>

namespace kt::cli {

// kt selftest MODEL_DIR [--golden DIR] [--json] [any flag of run]
void RegisterSelftestCommand(CLI::App& app, int* exit_code);

}  // namespace kt::cli

#endif  // KT_CLI_SELFTEST_COMMAND_H_
