// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/live_placement.h"

#include <algorithm>
#include <iterator>

#include "common/base/status.h"

namespace kt {

LivePlacement::LivePlacement(const ModelConfig& config, const Placement& initial)
    : changing_(Changing{initial, initial.device, PlacementHeat(config, initial)}) {}

void LivePlacement::OnAttached() {
  version_ = 1;
  if (changing_) changing_->residents = changing_->initial.device;
}

void LivePlacement::FillPlan(proto::StepPlan* plan) const {
  plan->set_placement_version(version_);
  if (!changing_ || plan->mode() != proto::STEP_MODE_LAYERWISE) return;
  const auto heat = changing_->heat.heat();
  for (size_t l = 0; l < heat.size(); ++l) {
    if (heat[l].empty()) continue;
    proto::LayerHeat* layer = plan->add_heat();
    layer->set_layer(static_cast<int>(l));
    layer->mutable_experts()->Add(heat[l].begin(), heat[l].end());
  }
}

absl::Status LivePlacement::Check(const proto::StepResult& result) const {
  const auto& layers = changing_->residents;
  const auto experts = [&](int l) {
    return l < 0 || l >= static_cast<int>(layers.size()) ? 0 : changing_->heat.heat(l).size();
  };
  for (const proto::LayerExpertCounts& c : result.expert_counts()) {
    if (experts(c.layer()) == 0 || c.counts_size() != static_cast<int>(experts(c.layer())))
      return Internal("step result: {} expert counts of layer {}", c.counts_size(), c.layer());
  }
  for (const proto::LayerResidents& r : result.residents()) {
    const size_t count = experts(r.layer());
    const bool ascending = std::adjacent_find(r.experts().begin(), r.experts().end(),
                                              std::greater_equal<>()) == r.experts().end();
    if (count == 0 || !ascending ||
        r.experts_size() != static_cast<int>(layers[static_cast<size_t>(r.layer())].size()) ||
        (r.experts_size() > 0 &&
         (r.experts(0) < 0 || r.experts(r.experts_size() - 1) >= static_cast<int>(count))))
      return Internal("step result: layer {} has other residents than there can be", r.layer());
  }
  return absl::OkStatus();
}

absl::Status LivePlacement::OnResult(const proto::StepResult& result) {
  if (!changing_) return absl::OkStatus();
  KT_RETURN_IF_ERROR(Check(result));
  for (const proto::LayerExpertCounts& c : result.expert_counts()) {
    const std::vector<uint32_t> counts(c.counts().begin(), c.counts().end());
    if (result.mode() == proto::STEP_MODE_LAYERWISE) {
      changing_->heat.CountLayerwise(c.layer(), counts);
    } else {
      changing_->heat.CountHybrid(c.layer(), counts,
                                  changing_->residents[static_cast<size_t>(c.layer())]);
    }
  }
  for (const proto::LayerResidents& r : result.residents()) {
    std::vector<int>& set = changing_->residents[static_cast<size_t>(r.layer())];
    const std::vector<int> now(r.experts().begin(), r.experts().end());
    std::vector<int> come;
    std::set_difference(now.begin(), now.end(), set.begin(), set.end(), std::back_inserter(come));
    changes_ += come.size();
    set = now;
  }
  version_ = result.placement_version();
  return absl::OkStatus();
}

}  // namespace kt
