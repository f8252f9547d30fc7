// SPDX-License-Identifier: Apache-2.0
#include "cli/status_command.h"

#include <memory>

#include "cli/status.h"

namespace kt::cli {

void RegisterStatusCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* command =
      app.add_subcommand("status", "Show the processes and health of what runs on this machine");
  command->add_option("--runtime-dir", options->runtime_dir,
                      "Private directory of one run; without it all runs of this user");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, exit_code] { *exit_code = StatusMain(*options); });
}

}  // namespace kt::cli
