// SPDX-License-Identifier: Apache-2.0
// kt: the command line. Each command lives in its own <name>_command.cc and registers itself here.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/bench/bench_command.h"
#include "cli/chat_command.h"
#include "cli/doctor_command.h"
#include "cli/model_command.h"
#include "cli/perplexity_command.h"
#include "cli/plan_command.h"
#include "cli/run_command.h"
#include "cli/selftest_command.h"
#include "cli/status_command.h"
#include "cli/tokenize_command.h"
#include "cli/trace_command.h"
#include "cli/version_command.h"
#include "common/base/exit_code.h"

int main(int argc, char** argv) {
  CLI::App app(
      "KT Runtime: serves mixture-of-experts language models on few GPUs and much CPU memory",
      "kt");
  app.require_subcommand(1);
  int exit_code = kt::kExitOk;
  kt::cli::RegisterRunCommand(app, &exit_code);
  kt::cli::RegisterModelCommand(app, &exit_code);
  kt::cli::RegisterChatCommand(app, &exit_code);
  kt::cli::RegisterDoctorCommand(app, &exit_code);
  kt::cli::RegisterPlanCommand(app, &exit_code);
  kt::cli::RegisterStatusCommand(app, &exit_code);
  kt::cli::RegisterTraceCommand(app, &exit_code);
  kt::cli::RegisterSelftestCommand(app, &exit_code);
  kt::cli::RegisterPerplexityCommand(app, &exit_code);
  kt::cli::RegisterBenchCommand(app, &exit_code);
  kt::cli::RegisterTokenizeCommand(app, &exit_code);
  kt::cli::RegisterVersionCommand(app, &exit_code);
  try {  // CLI11 reports through exceptions
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "kt: {} (see kt --help and kt run --help)\n", error.what());
    return kt::kExitUsage;
  }
  return exit_code;
}
