// SPDX-License-Identifier: Apache-2.0
#include "cli/plan.h"

#include <fmt/format.h>

#include <cstdio>

#include "cli/run.h"
#include "common/base/exit_code.h"
#include "common/base/status.h"
#include "common/weights/checkpoint.h"
#include "node/available_memory.h"

namespace kt::cli {

MachineMemory MeasureMemory(const proto::DeviceOptions& device) {
  return {.host_bytes = static_cast<int64_t>(AvailableMemoryBytes() + FreeHugetlbBytes()),
          .device_bytes = device.memory_bytes(),
          .device_is_host = device.kind() == "host"};
}

absl::StatusOr<std::unique_ptr<PlanFiles>> PlanFiles::Open(const proto::ModelOptions& model) {
  auto files = std::make_unique<PlanFiles>();
  KT_ASSIGN_OR_RETURN(files->model_, LoadModelConfig(model.path()));
  KT_ASSIGN_OR_RETURN(files->checkpoint_, Checkpoint::Open(model.path()));
  KT_ASSIGN_OR_RETURN(files->stored_, ResolveWeights(files->model_, *files->checkpoint_));
  if (model.weight_path() == model.path()) return files;
  KT_ASSIGN_OR_RETURN(const ModelConfig experts, LoadModelConfig(model.weight_path()));
  KT_ASSIGN_OR_RETURN(files->expert_checkpoint_, Checkpoint::Open(model.weight_path()));
  KT_ASSIGN_OR_RETURN(files->experts_,
                      ResolveWeights(experts, *files->expert_checkpoint_, StoredParts::kExperts));
  return files;
}

absl::StatusOr<PlanResult> MakePlan(const proto::RuntimeConfig& config) {
  KT_ASSIGN_OR_RETURN(const std::unique_ptr<PlanFiles> files, PlanFiles::Open(config.model()));
  const MachineMemory machine = MeasureMemory(config.device());
  PlanResult result;
  KT_ASSIGN_OR_RETURN(result.plan, PlanMemory(config, files->planned(), machine));
  if (!result.plan.fits()) result.fixes = SmallestChanges(config, files->planned(), machine);
  return result;
}

absl::Status CheckMemory(const proto::RuntimeConfig& config) {
  KT_ASSIGN_OR_RETURN(const PlanResult result, MakePlan(config));
  if (result.plan.fits()) return absl::OkStatus();
  return ResourceExhausted("{}; {}; kt plan shows every part",
                           fmt::join(result.plan.Shortfalls(), "; "), FixText(result.fixes));
}

int PlanMain(RunFlags& flags, bool json) {
  RunOptions options;
  proto::RuntimeConfig config;
  ConfigError error;
  if (!ReadConfig(flags, &options, &config, &error)) {
    fmt::print(stderr, "kt plan: {}\n", error.message);
    return error.exit_code;
  }
  const absl::StatusOr<PlanResult> result = MakePlan(config);
  if (!result.ok()) {
    fmt::print(stderr, "kt plan: {}\n", Message(result.status()));
    return ExitCodeFor(result.status());
  }
  fmt::print("{}", json ? DumpJson(PlanJson(result->plan, result->fixes), 2) + "\n"
                        : PlanText(result->plan, result->fixes));
  return result->plan.fits() ? kExitOk : kExitOutOfMemory;
}

}  // namespace kt::cli
