// SPDX-License-Identifier: Apache-2.0
#include "cli/trace_command.h"

#include <memory>

#include "cli/trace.h"

namespace kt::cli {

void RegisterTraceCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<TraceOptions>();
  CLI::App* command = app.add_subcommand(
      "trace", "Record what every process of a running system does, as a timeline for Perfetto");
  command->add_option("--seconds", options->seconds, "How long, at most 60")->capture_default_str();
  command->add_option("--out", options->out, "File to write")->capture_default_str();
  command->add_option(
      "--runtime-dir", options->runtime_dir,
      "Private directory of the run (kt status shows it); needed where several run");
  command->callback([options, exit_code] { *exit_code = TraceMain(*options); });
}

}  // namespace kt::cli
