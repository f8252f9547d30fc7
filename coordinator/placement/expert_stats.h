// SPDX-License-Identifier: Apache-2.0
// Counts which experts the steps used: hits and misses of the device, and recordings for files.
#ifndef KT_COORDINATOR_PLACEMENT_EXPERT_STATS_H_
#define KT_COORDINATOR_PLACEMENT_EXPERT_STATS_H_

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "common/placement/placement.h"
#include "coordinator/api/expert_recorder.h"
#include "proto/step.pb.h"

namespace kt {

// Choices of routed experts (one per token and chosen expert) since the start.
struct ExpertUse {
  uint64_t hits = 0;    // of residents of the device
  uint64_t misses = 0;  // of the others
  double hit_rate() const {
    return hits + misses > 0 ? static_cast<double>(hits) / static_cast<double>(hits + misses) : 0;
  }
};

// Thread-safe. Memory: a count per layer and expert, of 8 bytes; in mode per_pass 4 bytes for each
// of them and each pass of the buffer.
class ExpertStats final : public api::ExpertRecorder {
 public:
  ExpertStats(const ModelConfig& model, Placement placement, proto::RecorderOptions options);

  // What a step reports; failed ones and layers that the model has not are left out. Residents that
  // it has changed count from the next one on. Called on the scheduler's thread.
  void OnStep(const proto::StepResult& result);

  ExpertUse use() const;

  void StartRecord() override;
  void StopRecord() override;
  absl::StatusOr<std::string> DumpRecord() override;

 private:
  void BeginStep(const proto::StepResult& result);
  void EndStep(const proto::StepResult& result);
  struct Recording {
    uint64_t passes = 0;                         // since start, those that left the buffer too
    std::vector<uint64_t> sums;                  // [layers * experts]; empty in mode per_pass
    std::deque<std::vector<uint32_t>> per_pass;  // the last ones, [layers * experts] each
    ExpertUse use;
  };

  Recording NewRecording() const;
  bool keeps_passes() const { return options_.mode() == "per_pass"; }
  std::string Json(const Recording& recording, const Placement& placement) const;

  const ModelConfig model_;
  const proto::RecorderOptions options_;
  const size_t experts_;  // of the layer that has most

  mutable std::mutex mutex_;
  const Placement initial_;
  Placement placement_;
  ExpertUse use_;
  bool recording_now_ = false;
  Recording recording_;
};

}  // namespace kt

#endif  // KT_COORDINATOR_PLACEMENT_EXPERT_STATS_H_
