// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_command.h"

namespace kt::cli {

void RegisterBenchCommand(CLI::App& app, int* exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed on this machine");
  bench->require_subcommand(1);
  RegisterBenchKernelsCommand(*bench, exit_code);
  RegisterBenchModelCommand(*bench, exit_code);
}

}  // namespace kt::cli
