// SPDX-License-Identifier: Apache-2.0
#include "cli/run.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>

#include "cli/auto_limits.h"
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

using ConfigBuilder = std::function<absl::StatusOr<proto::RuntimeConfig>(const RunOptions&)>;

absl::Status ResolveAutomatic(const ModelConfig& model, const ConfigBuilder& build,
                              RunOptions& options) {
  std::unique_ptr<PlanFiles> files;
  MachineMemory machine;
  const auto fits = [&](const RunOptions& o) -> absl::StatusOr<bool> {
    KT_ASSIGN_OR_RETURN(const proto::RuntimeConfig config, build(o));
    if (files == nullptr) {
      KT_ASSIGN_OR_RETURN(files, PlanFiles::Open(config.model()));
      machine = MeasureMemory(config.device());
    }
    KT_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(config, files->planned(), machine));
    return plan.fits();
  };
  KT_ASSIGN_OR_RETURN(const std::vector<std::string> lines, ChooseAutomatic(model, fits, options));
  for (const std::string& line : lines) spdlog::info("{}", line);
  return absl::OkStatus();
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
  const topology::CpuBudget budget = topology::MeasureCpuBudget(*topology);
  std::string kt_method;
  const auto build = [&](const RunOptions& o) -> absl::StatusOr<proto::RuntimeConfig> {
    KT_ASSIGN_OR_RETURN(proto::RuntimeConfig out, BuildRuntimeConfig(o, *model, *topology, budget));
    out.mutable_experts()->set_method(kt_method);
    return out;
  };
  const absl::StatusOr<proto::RuntimeConfig> least = build(WithLeast(*options));
  if (!least.ok()) return fail(kExitUsage, least.status());
  absl::StatusOr<std::string> method =
      CheckWeights(least->model().path(), *model, least->model().weight_path());
  if (!method.ok()) return fail(kExitBadModel, method.status());
  absl::StatusOr<std::string> chosen = ChooseKtMethod(options->kt_method, *method);
  if (!chosen.ok()) return fail(kExitUsage, chosen.status());
  kt_method = *chosen;
  if (HasAutomatic(*options)) {
    const absl::Status status = ResolveAutomatic(*model, build, *options);
    if (!status.ok()) return fail(kExitUsage, status);
  }
  absl::StatusOr<proto::RuntimeConfig> built = build(*options);
  if (!built.ok()) return fail(kExitUsage, built.status());
  *config = *std::move(built);
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
