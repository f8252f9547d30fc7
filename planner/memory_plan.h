// SPDX-License-Identifier: Apache-2.0
// What a configuration will take of every kind of memory, process by process, known before a weight
// is read, and which changes make it fit. `kt plan` prints it, `kt run` refuses by it.
//
// The pools of a GPU worker are those that its own code asks of a device that has no memory, so
// that plan and worker cannot differ.
#ifndef KT_PLANNER_MEMORY_PLAN_H_
#define KT_PLANNER_MEMORY_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/json.h"
#include "common/model/model_config.h"
#include "common/weights/stored_model.h"
#include "proto/config.pb.h"

namespace kt {

enum class PoolKind {
  kStatic,     // of the device: weights and cache, what --mem-fraction-static bounds
  kWorkspace,  // of the device: the rest
  kHost,
};

struct PlannedPool {
  std::string name;  // as in WorkerFacts.pools; of device pools that of the allocation
  int64_t bytes = 0;
  PoolKind kind = PoolKind::kHost;
};

struct PlannedProcess {
  std::string name;  // "kt-gpu-worker-0"
  std::vector<PlannedPool> pools;
  int64_t device_bytes() const;
};

// What there is to take from.
struct MachineMemory {
  int64_t host_bytes = 0;      // that can be had now
  int64_t device_bytes = 0;    // of each rank's device; 0: it has no bound of its own
  bool device_is_host = true;  // device pools lie in host memory
};

struct MemoryPlan {
  std::vector<PlannedProcess> processes;
  MachineMemory machine;
  double static_fraction = 0;  // --mem-fraction-static; 0: not given

  int64_t host_bytes() const;
  // What does not fit, a sentence for each limit that is passed; empty: all fits.
  std::vector<std::string> Shortfalls() const;
  bool fits() const { return Shortfalls().empty(); }
};

// The model as `kt run` has checked it. `expert_weights` is --kt-weight-path's, or the same.
struct PlannedModel {
  const ModelConfig* config;
  const StoredModel* weights;
  const StoredModel* expert_weights;
};

absl::StatusOr<MemoryPlan> PlanMemory(const proto::RuntimeConfig& config, const PlannedModel& model,
                                      const MachineMemory& machine);

struct PlanChange {
  std::string flag;
  int64_t from = 0, to = 0;
};
// Flags that together make the plan fit, at the values nearest to what was asked for.
using PlanFix = std::vector<PlanChange>;

// Of a plan that does not fit: every single flag that is enough; where none is, several together.
// Empty: nothing helps.
std::vector<PlanFix> SmallestChanges(const proto::RuntimeConfig& config, const PlannedModel& model,
                                     const MachineMemory& machine);

// "give --max-total-tokens 4096 (now 32768), or ..." in one sentence.
std::string FixText(const std::vector<PlanFix>& fixes);
// For people: a line for each pool, what there is, and what does not fit.
std::string PlanText(const MemoryPlan& plan, const std::vector<PlanFix>& fixes);
Json PlanJson(const MemoryPlan& plan, const std::vector<PlanFix>& fixes);

}  // namespace kt

#endif  // KT_PLANNER_MEMORY_PLAN_H_
