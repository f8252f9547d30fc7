// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor_command.h"

#include <memory>

#include "cli/doctor.h"
#include "cli/model_registry.h"
#include "common/base/exit_code.h"

namespace kt::cli {

void RegisterDoctorCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command =
      app.add_subcommand("doctor", "Check this machine (and a model) before starting the server");
  command->add_flag("--verbose,-v", options->verbose, "Show details too");
  command->add_flag("--json", options->json, "Print JSON");
  command->add_option("--model", options->model_dir,
                      "Model (directory or name) to check and to predict the memory of");
  command->add_option(
      "--kt-method", options->kt_method,
      "With --model: predict for AMXINT8 or AMXINT4 instead of the weights as stored");
  command->add_option("--host,-H", options->host, "Address the server is to listen on")
      ->capture_default_str();
  command->add_option("--port,-p", options->port, "Port the server is to listen on")
      ->capture_default_str()
      ->check(CLI::Range(1, 65535));
  command->callback([options, exit_code] {
    if (!options->model_dir.empty() && !ResolveArgument("doctor", &options->model_dir)) {
      *exit_code = kExitBadModel;
      return;
    }
    *exit_code = DoctorMain(*options);
  });
}

}  // namespace kt::cli
