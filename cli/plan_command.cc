// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_command.h"

#include <memory>

#include "cli/plan.h"

namespace kt::cli {

void RegisterPlanCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "plan", "Show what every process will take of memory with these flags, without starting it");
  command->footer("Takes the flags of kt run. Exit code 5: it does not fit; what would is shown.");
  auto flags = std::make_shared<RunFlags>(command);
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON")->group("Command");
  command->callback([flags, json, exit_code] { *exit_code = PlanMain(*flags, *json); });
}

}  // namespace kt::cli
