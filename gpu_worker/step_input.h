// SPDX-License-Identifier: Apache-2.0
// A StepPlan, checked and laid out flat for the forward pass.
#ifndef KT_GPU_WORKER_STEP_INPUT_H_
#define KT_GPU_WORKER_STEP_INPUT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/device.h"
#include "gpu_worker/ops.h"
#include "proto/step.pb.h"

namespace kt {

struct StepLimits {
  int tokens_max = 0;  // rows of a step
  int sequences_max = 0;
  int vocab = 0;
  int kv_blocks = 0;
  int block_tokens = 0;
  int position_max = 0;  // positions are below it
  int state_slots = 0;   // numbered from 1; 0: a model without state
};

// Every index and size of the plan against the limits. InvalidArgument names the sequence, the
// field and the value.
absl::Status CheckStepPlan(const proto::StepPlan& plan, const StepLimits& limits);

// Rows of a step in device memory; one object serves every step, allocated at the limits.
class StepInput {
 public:
  static absl::StatusOr<StepInput> Allocate(const StepLimits& limits, Device& device);

  // The plan has passed CheckStepPlan.
  absl::Status Fill(const proto::StepPlan& plan, Device& device);

  int tokens() const { return static_cast<int>(token_ids_.size()); }
  const int32_t* token_ids() const { return device_ids_; }
  const int32_t* positions() const { return device_positions_; }
  const std::vector<SequenceView>& sequences() const { return sequences_; }

 private:
  DeviceBuffer memory_;
  int32_t* device_ids_ = nullptr;
  int32_t* device_positions_ = nullptr;
  int32_t* device_tables_ = nullptr;
  std::vector<int32_t> token_ids_, positions_, tables_;
  std::vector<SequenceView> sequences_;
};

}  // namespace kt

#endif  // KT_GPU_WORKER_STEP_INPUT_H_
