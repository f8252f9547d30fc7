// SPDX-License-Identifier: Apache-2.0
#ifndef KT_CLI_TRACE_COMMAND_H_
#define KT_CLI_TRACE_COMMAND_H_

#include <CLI/CLI.hpp>

namespace kt::cli {

void RegisterTraceCommand(CLI::App& app, int* exit_code);

}  // namespace kt::cli

#endif  // KT_CLI_TRACE_COMMAND_H_
