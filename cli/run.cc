// SPDX-License-Identifier: Apache-2.0
#include "cli/run.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cli/environment.h"
#include "cli/launch.h"
#include "cli/model_check.h"
#include "cli/plan.h"
#include "cli/run_config.h"
#include "common/base/exit_code.h"
#include "common/base/status.h"
#include "common/observe/log.h"
#include "common/rpc/runtime_config.h"
#include "common/topology/cpu_budget.h"
#include "common/topology/topology.h"
#include "common/weights/weight_summary.h"

namespace kt::cli {
namespace {

std::string DryRunText(const proto::RuntimeConfig& config) {
  NodeSpec spec = MakeNodeSpec(config, ProgramDir(), 0);
  std::string text =
      fmt::format("would listen on {} port {} and start:\n", spec.listen_host, spec.listen_port);
  for (const ProcessSpec& process : spec.processes) {
    text += fmt::format("  {}: {}\n", process.name, fmt::join(process.argv, " "));
  }
  return text;
}

}  // namespace

bool ReadConfig(RunFlags& flags, RunOptions* options, proto::RuntimeConfig* config,
                ConfigError* error) {
  auto fail = [error](int code, const absl::Status& status) {
    *error = {code, Message(status)};
    return false;
  };
  absl::StatusOr<RunOptions> read = flags.Read();
  if (!read.ok())
    return fail(absl::IsNotFound(read.status()) ? kExitBadModel : kExitUsage, read.status());
  *options = *std::move(read);
  if (absl::Status log = SetUpLog("kt", options->log_level, options->log_format); !log.ok())
    return fail(kExitUsage, log);
  if (const char* dir = std::getenv("SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR");
      dir != nullptr && options->recorder_dir.empty())
    options->recorder_dir = dir;
  absl::StatusOr<ModelConfig> model = CheckModelDir(options->model);
  if (!model.ok()) return fail(kExitBadModel, model.status());
  absl::StatusOr<topology::Topology> topology = topology::Topology::Load();
  if (!topology.ok()) return fail(kExitHardware, topology.status());
  absl::StatusOr<proto::RuntimeConfig> built =
      BuildRuntimeConfig(*options, *model, *topology, topology::MeasureCpuBudget(*topology));
  if (!built.ok()) return fail(kExitUsage, built.status());
  *config = *std::move(built);
  absl::StatusOr<std::string> method =
      CheckWeights(config->model().path(), *model, config->model().weight_path());
  if (!method.ok()) return fail(kExitBadModel, method.status());
  absl::StatusOr<std::string> chosen = ChooseKtMethod(options->kt_method, *method);
  if (!chosen.ok()) return fail(kExitUsage, chosen.status());
  config->mutable_experts()->set_method(*chosen);
  for (const std::string& note : options->notes) spdlog::info("{}", note);
  for (const std::string& note : EnvironmentNotes()) spdlog::info("{}", note);
  for (const std::string& warning : StartWarnings(*config)) spdlog::warn("{}", warning);
  return true;
}

bool ConfigureRun(RunFlags& flags, RunOptions* options, proto::RuntimeConfig* config,
                  ConfigError* error) {
  if (!ReadConfig(flags, options, config, error)) return false;
  const absl::Status memory = CheckMemory(*config);
  if (!memory.ok()) *error = {ExitCodeFor(memory), Message(memory)};
  return memory.ok();
}

int RunMain(RunFlags& flags) {
  int64_t started_ns = MonotonicNs();
  RunOptions options;
  proto::RuntimeConfig config;
  ConfigError error;
  if (!ConfigureRun(flags, &options, &config, &error)) {
    fmt::print(stderr, "kt run: {}\n", error.message);
    return error.exit_code;
  }
  if (options.print_config) {
    fmt::print("{}\n", RuntimeConfigToJson(config, false));
    return kExitOk;
  }
  if (options.dry_run) {
    fmt::print("{}", DryRunText(config));
    return kExitOk;
  }
  absl::StatusOr<Launch> launch = PrepareLaunch(std::move(config), started_ns);
  absl::Status failed = launch.ok() ? ExecNode(*launch) : launch.status();
  fmt::print(stderr, "kt run: {}\n", Message(failed));
  return kExitFailure;
}

}  // namespace kt::cli
