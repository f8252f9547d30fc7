// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/rank_experts.h"

#include "common/base/status.h"
#include "common/placement/placement.h"
#include "common/weights/tensor_shard.h"

namespace kt {

std::vector<size_t> RankExperts::uncopied() const {
  std::vector<size_t> counts;
  for (const std::vector<int>& set : sets) counts.push_back(slots ? set.size() : 0);
  return counts;
}

size_t RankExperts::ResidentBytes(const ModelConfig& model, const StoredModel& stored) const {
  return slots ? ResidentExperts::ChangingBytes(*pieces, sets)
               : ExpertBank::Bytes(model, stored, held(), slice, form);
}

absl::StatusOr<std::unique_ptr<RankExperts>> PlanRankExperts(const proto::RuntimeConfig& config,
                                                             const ModelConfig& model,
                                                             const StoredModel& stored,
                                                             const StoredModel& expert_weights,
                                                             int rank) {
  const int intermediate = model.moes.empty() ? 0 : model.moes[0].intermediate;
  const RowRange rows = TilesOfRank(intermediate, rank, config.device().tensor_parallel_size());
  const IntermediateSlice slice{rows.begin, rows.end};
  auto plan = std::make_unique<RankExperts>();
  KT_ASSIGN_OR_RETURN(Placement placement, InitialPlacement(config.experts(), model));
  const bool exact = config.device().activation_dtype() == "float32";
  plan->slice = slice;
  plan->sets = placement.device;
  plan->form = {exact};
  plan->slots = config.experts().dynamic_update();
  const ExpertForm form = ExpertFormOf(config.experts().method(), exact);
  const IntermediateSlice whole{0, intermediate};
  for (size_t l = 0; l < model.layers.size(); ++l) {
    const auto bytes = [&](const StoredModel& from, IntermediateSlice rows,
                           const ExpertForm& packed) {
      std::vector<size_t> out;
      for (const StoredExpert& e : from.layers[l].experts)
        out.push_back(rows.end > rows.begin ? LayoutOf(e, rows, packed).bytes() : 0);
      return out;
    };
    plan->bytes.workers.push_back(bytes(expert_weights, whole, form));
    plan->bytes.resident.push_back(plan->slots ? bytes(expert_weights, slice, form)
                                               : bytes(stored, slice, plan->form));
  }
  if (config.scheduler().gpu_prefill_token_threshold() == 0 || model.moes.empty()) return plan;
  if (plan->slots) placement.device.assign(model.layers.size(), {});
  KT_ASSIGN_OR_RETURN(plan->pieces,
                      ExpertPieces::Make(expert_weights, placement.CpuExperts(model), form,
                                         intermediate, config.experts().worker_count(), slice));
  return plan;
}

}  // namespace kt
