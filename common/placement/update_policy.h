// SPDX-License-Identifier: Apache-2.0
// Which experts a layer should hold on the device, from how often they were used: pure functions,
// the same on every rank.
//
// Heat     of an expert: how often it was chosen, where older choices weigh less; a number of
//          choices (one per token and chosen expert). Finite and not negative.
// Change   of one resident for another: pays when the newcomer's heat exceeds the other's by more
//          than hysteresis, chance and the price of moving its bytes explain.
// Order    decisions depend on the arguments alone; ties go to the lower id
#ifndef KT_COMMON_PLACEMENT_UPDATE_POLICY_H_
#define KT_COMMON_PLACEMENT_UPDATE_POLICY_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/placement/placement.h"

namespace kt {

struct UpdatePolicy {
  // Choices of a layer after which an earlier one weighs half: 4096 tokens of 8 experts each.
  double half_life = 32768;
  double hysteresis = 0.1;  // share of the displaced expert's heat
  double sigmas = 2;        // standard deviations of the difference of two counts
  double swap_cost = 8;     // device hits that a change must bring: what moving an expert costs
};

// Ages the heat of a layer by as many choices as `counts` has and adds them. Equal sizes.
void AddCounts(std::span<const uint32_t> counts, const UpdatePolicy& policy,
               std::span<double> heat);

// The residents of one layer: as many as `current` (ascending, ids below heat.size()), ascending.
// Best changes first: the hottest expert outside against the coldest resident, until none pays.
std::vector<int> ChooseResidents(std::span<const double> heat, std::span<const int> current,
                                 const UpdatePolicy& policy);

struct Promotion {
  int layer;
  int in, out;  // experts
  bool operator==(const Promotion&) const = default;
};

// The changes of ChooseResidents over all layers, greatest gain first, as many as `byte_budget` has
// room for; one that does not fit is left out, later ones may fit. heat: [layer][expert], empty for
// dense layers. expert_bytes: [layer], what is moved for one expert.
std::vector<Promotion> ChoosePromotions(const std::vector<std::vector<double>>& heat,
                                        const Placement& current,
                                        std::span<const int64_t> expert_bytes, int64_t byte_budget,
                                        const UpdatePolicy& policy);

// Makes the changes and raises the version by one. Every promotion's `out` is resident, `in` is
// not.
void ApplyPromotions(std::span<const Promotion> promotions, Placement* placement);

}  // namespace kt

#endif  // KT_COMMON_PLACEMENT_UPDATE_POLICY_H_
