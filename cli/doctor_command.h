// SPDX-License-Identifier: Apache-2.0
#ifndef KT_CLI_DOCTOR_COMMAND_H_
#define KT_CLI_DOCTOR_COMMAND_H_

#include <CLI/CLI.hpp>

namespace kt::cli {

// Adds `doctor` to the program; running it leaves its exit code in *exit_code.
void RegisterDoctorCommand(CLI::App& app, int* exit_code);

}  // namespace kt::cli

#endif  // KT_CLI_DOCTOR_COMMAND_H_
