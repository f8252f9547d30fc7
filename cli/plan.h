// SPDX-License-Identifier: Apache-2.0
// `kt plan`, and the same check at the start of whatever starts the processes.
#ifndef KT_CLI_PLAN_H_
#define KT_CLI_PLAN_H_

#include "cli/flags.h"
#include "planner/memory_plan.h"
#include "proto/config.pb.h"

namespace kt::cli {

struct PlanResult {
  MemoryPlan plan;
  std::vector<PlanFix> fixes;  // of a plan that does not fit
};

// Of a checked configuration, on this machine. Reads the checkpoints' headers.
absl::StatusOr<PlanResult> MakePlan(const proto::RuntimeConfig& config);

// ResourceExhausted: it will not fit, with what would.
absl::Status CheckMemory(const proto::RuntimeConfig& config);

// Exit code: kExitOutOfMemory where it does not fit.
int PlanMain(RunFlags& flags, bool json);

}  // namespace kt::cli

#endif  // KT_CLI_PLAN_H_
