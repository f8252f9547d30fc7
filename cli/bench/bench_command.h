// SPDX-License-Identifier: Apache-2.0
#ifndef KT_CLI_BENCH_BENCH_COMMAND_H_
#define KT_CLI_BENCH_BENCH_COMMAND_H_

#include <CLI/CLI.hpp>

namespace kt::cli {

// `kt bench` and what stands below it.
void RegisterBenchCommand(CLI::App& app, int* exit_code);
void RegisterBenchKernelsCommand(CLI::App& bench, int* exit_code);
void RegisterBenchModelCommand(CLI::App& bench, int* exit_code);

}  // namespace kt::cli

#endif  // KT_CLI_BENCH_BENCH_COMMAND_H_
