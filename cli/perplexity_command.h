// SPDX-License-Identifier: Apache-2.0
#ifndef KT_CLI_PERPLEXITY_COMMAND_H_
#define KT_CLI_PERPLEXITY_COMMAND_H_

#include <CLI/CLI.hpp>

namespace kt::cli {

// kt perplexity MODEL_DIR TEXT_FILE [--json] [any flag of run]
void RegisterPerplexityCommand(CLI::App& app, int* exit_code);

}  // namespace kt::cli

#endif  // KT_CLI_PERPLEXITY_COMMAND_H_
