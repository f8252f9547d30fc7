// SPDX-License-Identifier: Apache-2.0
#include "cli/run_command.h"

#include <fmt/format.h>

#include <memory>

#include "cli/environment.h"
#include "cli/flags.h"
#include "cli/run.h"

namespace kt::cli {

void RegisterRunCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("run", "Serve a model: start all processes and stay in the foreground");
  command->footer(
      "docs/flags.md lists every flag with what it does here and why some have no effect or are "
      "refused.");
  auto flags = std::make_shared<RunFlags>(command);
  CLI::Option* print_table = command->add_flag("--print-flags-table")
                                 ->description("Print the tables of docs/flags.md and exit")
                                 ->group("Command");
  command->callback([flags, print_table, exit_code] {
    if (print_table->count() > 0) {
      fmt::print("{}{}", FlagsMarkdown(), EnvironmentMarkdown());
      *exit_code = 0;
    } else {
      *exit_code = RunMain(*flags);
    }
  });
}

}  // namespace kt::cli
