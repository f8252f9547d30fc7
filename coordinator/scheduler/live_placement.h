// SPDX-License-Identifier: Apache-2.0
// What the scheduler knows of where experts are: the version that its plans name, how hot experts
// have been, and which ones are resident now.
#ifndef KT_COORDINATOR_SCHEDULER_LIVE_PLACEMENT_H_
#define KT_COORDINATOR_SCHEDULER_LIVE_PLACEMENT_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "common/placement/placement_heat.h"
#include "proto/step.pb.h"

namespace kt {

// One thread.
class LivePlacement {
 public:
  LivePlacement() = default;  // of a placement that stays
  LivePlacement(const ModelConfig& config, const Placement& initial);

  // Workers were attached, which have the placement at start.
  void OnAttached();
  // The version and, of a layerwise step of a placement that changes, the heat.
  void FillPlan(proto::StepPlan* plan) const;
  // A step has succeeded. Internal: it says what cannot be; nothing is adopted then.
  absl::Status OnResult(const proto::StepResult& result);

  uint64_t version() const { return version_; }
  uint64_t changes() const { return changes_; }  // experts that have become resident since start

 private:
  absl::Status Check(const proto::StepResult& result) const;

  // None: the placement stays.
  struct Changing {
    Placement initial;
    std::vector<std::vector<int>> residents;
    PlacementHeat heat;
  };
  std::optional<Changing> changing_;
  uint64_t version_ = 1;
  uint64_t changes_ = 0;
};

}  // namespace kt

#endif  // KT_COORDINATOR_SCHEDULER_LIVE_PLACEMENT_H_
