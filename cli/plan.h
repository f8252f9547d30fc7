// SPDX-License-Identifier: Apache-2.0
// `kt plan`, and the same check at the start of whatever starts the processes.
#ifndef KT_CLI_PLAN_H_
#define KT_CLI_PLAN_H_

#include <memory>

#include "cli/flags.h"
#include "common/weights/checkpoint.h"
#include "planner/memory_plan.h"
#include "proto/config.pb.h"

namespace kt::cli {

struct PlanResult {
  MemoryPlan plan;
  std::vector<PlanFix> fixes;  // of a plan that does not fit
};

// The headers of a model's checkpoints.
class PlanFiles {
 public:
  static absl::StatusOr<std::unique_ptr<PlanFiles>> Open(const proto::ModelOptions& model);
  PlannedModel planned() const {
    return {&model_, &stored_, expert_checkpoint_ != nullptr ? &experts_ : &stored_};
  }

 private:
  std::unique_ptr<Checkpoint> checkpoint_, expert_checkpoint_;
  ModelConfig model_;
  StoredModel stored_, experts_;
};

// What there is on this machine.
MachineMemory MeasureMemory(const proto::DeviceOptions& device);

// Of a checked configuration, on this machine. Reads the checkpoints' headers.
absl::StatusOr<PlanResult> MakePlan(const proto::RuntimeConfig& config);

// ResourceExhausted: it will not fit, with what would.
absl::Status CheckMemory(const proto::RuntimeConfig& config);

// Exit code: kExitOutOfMemory where it does not fit.
int PlanMain(RunFlags& flags, bool json);

}  // namespace kt::cli

#endif  // KT_CLI_PLAN_H_
