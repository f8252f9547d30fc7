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
namespace {

MachineMemory Measure(const proto::DeviceOptions& device) {
  return {.host_bytes = static_cast<int64_t>(AvailableMemoryBytes() + FreeHugetlbBytes()),
          .device_bytes = device.memory_bytes(),
          .device_is_host = device.kind() == "host"};
}

struct Model {
  std::unique_ptr<Checkpoint> checkpoint;
  ModelConfig config;
  StoredModel stored;
};

absl::StatusOr<Model> Open(const std::string& dir, StoredParts parts) {
  Model model;
  KT_ASSIGN_OR_RETURN(model.config, LoadModelConfig(dir));
  KT_ASSIGN_OR_RETURN(model.checkpoint, Checkpoint::Open(dir));
  KT_ASSIGN_OR_RETURN(model.stored, ResolveWeights(model.config, *model.checkpoint, parts));
  return model;
}

}  // namespace

absl::StatusOr<PlanResult> MakePlan(const proto::RuntimeConfig& config) {
  const std::string &path = config.model().path(), &expert_path = config.model().weight_path();
  KT_ASSIGN_OR_RETURN(const Model model, Open(path, StoredParts::kAll));
  Model experts;
  if (expert_path != path) {
    KT_ASSIGN_OR_RETURN(experts, Open(expert_path, StoredParts::kExperts));
  }
  const PlannedModel planned{&model.config, &model.stored,
                             expert_path != path ? &experts.stored : &model.stored};
  const MachineMemory machine = Measure(config.device());
  PlanResult result;
  KT_ASSIGN_OR_RETURN(result.plan, PlanMemory(config, planned, machine));
  if (!result.plan.fits()) result.fixes = SmallestChanges(config, planned, machine);
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
