// SPDX-License-Identifier: Apache-2.0
// The history that placements are changed by, and the judge of the changes.
//
// Heat is kept for every layer (update_policy.h). Beside it runs a comparison: hits that the
// residents had against those that the initial ones would have had, older ones weighing less. No
// policy that learns from the past is safe against traffic that turns against it; so when the
// changes have cost more hits than they brought, the initial residents are made the hottest of all
// for a while, and each time it happens again for twice as long. What changing loses against not
// changing is thereby bounded, whatever the traffic.
#ifndef KT_COMMON_PLACEMENT_PLACEMENT_HEAT_H_
#define KT_COMMON_PLACEMENT_PLACEMENT_HEAT_H_

#include <span>
#include <vector>

#include "common/placement/update_policy.h"

namespace kt {

// One thread.
class PlacementHeat {
 public:
  PlacementHeat(const ModelConfig& config, Placement initial, UpdatePolicy policy = {});

  // One layer's part of a hybrid step that ran with these residents. `counts` has one number per
  // expert of the layer.
  void CountHybrid(int layer, std::span<const uint32_t> counts, std::span<const int> residents);
  // Of a layerwise step: all experts ran on the device, so it says nothing about the residents.
  void CountLayerwise(int layer, std::span<const uint32_t> counts);
  // So many experts changed places; each counts as UpdatePolicy::swap_cost hits lost.
  void CountChanges(int changes);

  // What ChooseResidents and ChoosePromotions take: [layer][expert].
  std::vector<std::vector<double>> heat() const;
  std::vector<double> heat(int layer) const;
  const UpdatePolicy& policy() const { return policy_; }
  // Whether the initial residents are asked back at present.
  bool holding() const { return hold_left_ > 0; }

 private:
  void Judge(double advantage);

  const UpdatePolicy policy_;
  const Placement initial_;
  double moe_layers_ = 0;
  std::vector<std::vector<double>> heat_;
  double advantage_ = 0;  // hits over those of the initial residents, decayed
  double hold_left_ = 0;  // choices, of all layers together
  double hold_next_ = 0;
};

}  // namespace kt

#endif  // KT_COMMON_PLACEMENT_PLACEMENT_HEAT_H_
