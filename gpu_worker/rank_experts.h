// SPDX-License-Identifier: Apache-2.0
// What a rank will hold of the routed experts, and what it can take from the CPU workers, before
// anything of it is there.
#ifndef KT_GPU_WORKER_RANK_EXPERTS_H_
#define KT_GPU_WORKER_RANK_EXPERTS_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/expert_pieces.h"
#include "gpu_worker/expert_stream.h"
#include "gpu_worker/resident_experts.h"
#include "proto/config.pb.h"
#include "worker/expert_bank.h"

namespace kt {

// What reading an expert costs where it is resident, and where CPU workers have it: [layer][expert]
// bytes.
struct ExpertBytes {
  std::vector<std::vector<size_t>> resident, workers;
};

struct RankExperts {
  IntermediateSlice slice;  // the rank's rows; may have none
  ExpertSets sets;          // residents at start
  ExpertForm form;          // of residents that never change places
  bool slots = false;       // residents change places
  ExpertBytes bytes;
  std::optional<ExpertPieces> pieces;  // none: no layerwise steps

  // Residents that the rank has rows of.
  ExpertSets held() const { return slice.end > slice.begin ? sets : ExpertSets(sets.size()); }
  // Of each layer: experts that layerwise steps do not copy. Without slots, those are not among the
  // CPU workers' either.
  std::vector<size_t> uncopied() const;
  size_t ResidentBytes(const ModelConfig& model, const StoredModel& stored) const;
  size_t BufferBytes() const { return pieces ? ExpertStream::BufferBytes(*pieces, uncopied()) : 0; }
};

// `whole`: the model that all ranks share. `expert_weights`: those of the CPU workers.
absl::StatusOr<std::unique_ptr<RankExperts>> PlanRankExperts(const proto::RuntimeConfig& config,
                                                             const ModelConfig& whole,
                                                             const StoredModel& stored,
                                                             const StoredModel& expert_weights,
                                                             int rank);

}  // namespace kt

#endif  // KT_GPU_WORKER_RANK_EXPERTS_H_
