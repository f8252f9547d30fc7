// SPDX-License-Identifier: Apache-2.0
// Experts of a model packed in one piece of memory: those of an expert worker (its slice of the
// intermediate dimension) or those resident on the device (whole). They lie as BankLayout says, in
// the format each is stored in or rounded to (docs/formats/packed_expert.md).
#ifndef KT_WORKER_EXPERT_BANK_H_
#define KT_WORKER_EXPERT_BANK_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/parallel.h"
#include "common/model/model_config.h"
#include "common/weights/stored_model.h"
#include "worker/expert_layout.h"

namespace kt {

// The slice of expert worker `index` of `count`: whole tiles, as even as they go. InvalidArgument:
// more workers than tiles, with the most that fit.
absl::StatusOr<IntermediateSlice> SliceOfWorker(int intermediate, int index, int count);

// Immutable after Load; owns no weights.
class ExpertBank {
 public:
  static size_t Bytes(const ModelConfig& config, const StoredModel& stored, const ExpertSets& sets,
                      IntermediateSlice slice, const ExpertForm& form);
  static size_t LayerBytes(const StoredModel& stored, const ExpertSets& sets, size_t layer,
                           IntermediateSlice slice, const ExpertForm& form);

  // Packs into `memory` (Bytes long, outlives the bank). `progress` gets the bytes packed so far.
  // DataLoss: a weight is not a number. InvalidArgument: rows too long to be rounded.
  static absl::StatusOr<ExpertBank> Load(const ModelConfig& config, const StoredModel& stored,
                                         const Checkpoint& checkpoint, const ExpertSets& sets,
                                         IntermediateSlice slice, const ExpertForm& form,
                                         uint8_t* memory, Parallel& parallel,
                                         const std::function<void(uint64_t)>& progress);

  // [num_experts]; entries of experts that are not held have null pointers. Null for dense layers.
  const ExpertWeights* layer(int layer) const {
    return experts_[static_cast<size_t>(layer)].data();
  }
  int layers() const { return static_cast<int>(experts_.size()); }

 private:
  std::vector<std::vector<ExpertWeights>> experts_;
};

}  // namespace kt

#endif  // KT_WORKER_EXPERT_BANK_H_
