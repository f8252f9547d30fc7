// SPDX-License-Identifier: Apache-2.0
#include "common/placement/testing/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "common/placement/placement_heat.h"
#include "common/placement/strategy.h"
#include "common/sim/rng.h"

namespace kt {
namespace {

using Weights = std::vector<double>;
using Counts = std::vector<uint32_t>;

constexpr double kHotShare = 0.1;  // of the experts that rotating and misleading traffic uses

ModelConfig MakeModel(const ReplayShape& shape) {
  ModelConfig model;
  model.moes.resize(1);
  model.moes[0].num_experts = shape.experts;
  model.layers.resize(static_cast<size_t>(shape.layers));
  for (LayerConfig& layer : model.layers) layer.moe = 0;
  return model;
}

// Each token's experts are different ones, drawn by weight.
Counts Draw(const Weights& weights, int tokens, int top_k, Rng& rng) {
  Weights sums(weights.size());
  std::partial_sum(weights.begin(), weights.end(), sums.begin());
  Counts counts(weights.size());
  std::vector<size_t> chosen;
  for (int t = 0; t < tokens; ++t) {
    chosen.clear();
    while (static_cast<int>(chosen.size()) < top_k) {
      const double x = static_cast<double>(rng.Next() >> 11) * 0x1p-53 * sums.back();
      const auto e =
          static_cast<size_t>(std::upper_bound(sums.begin(), sums.end(), x) - sums.begin());
      if (std::find(chosen.begin(), chosen.end(), e) != chosen.end()) continue;
      chosen.push_back(e);
      ++counts[e];
    }
  }
  return counts;
}

// Draws the weights of one layer's experts.
class LayerTraffic {
 public:
  LayerTraffic(const ReplayCase& replay, uint64_t seed) : replay_(replay), rng_(seed) {
    order_.resize(static_cast<size_t>(replay.shape.experts));
    std::iota(order_.begin(), order_.end(), 0);
    for (size_t left = order_.size(); left > 1; --left)
      std::swap(order_[left - 1], order_[rng_.Next() % left]);
  }

  void StartConversation(int number) {
    if (replay_.traffic == Traffic::kDrifting) {
      std::swap(order_[rng_.Next() % order_.size()], order_[rng_.Next() % order_.size()]);
    } else if (replay_.traffic == Traffic::kRotating && number % replay_.period == 0) {
      std::rotate(order_.begin(), order_.begin() + HotExperts(), order_.end());
    }
  }

  Weights Next(bool prompt, const std::vector<int>& held) const {
    Weights weights(order_.size(), 0);
    switch (replay_.traffic) {
      case Traffic::kUniform:
        weights.assign(order_.size(), 1);
        break;
      case Traffic::kZipf:
      case Traffic::kDrifting:
        for (size_t rank = 0; rank < order_.size(); ++rank)
          weights[order_[rank]] = 1 / static_cast<double>(rank + 1);
        break;
      case Traffic::kRotating:
        for (int i = 0; i < HotExperts(); ++i) weights[order_[static_cast<size_t>(i)]] = 1;
        break;
      case Traffic::kMisleading:
        for (int i = 0; i < HotExperts(); ++i)
          weights[order_[static_cast<size_t>(prompt ? i : i + HotExperts())]] = 1;
        break;
      case Traffic::kHostile:
        weights.assign(order_.size(), 1);
        for (int e : held) weights[static_cast<size_t>(e)] = 0;
        break;
    }
    return weights;
  }

 private:
  int HotExperts() const {
    return std::max(replay_.shape.top_k, static_cast<int>(kHotShare * replay_.shape.experts));
  }

  const ReplayCase& replay_;
  Rng rng_;
  std::vector<size_t> order_;  // of the experts: the hottest first
};

class Replayer {
 public:
  explicit Replayer(const ReplayCase& replay)
      : replay_(replay),
        model_(MakeModel(replay.shape)),
        slots_(static_cast<int64_t>(replay.resident_share *
                                    static_cast<double>(TotalExperts(model_)))),
        dynamic_(PlaceExperts(PlacementStrategy::kUniform, slots_, model_)),
        heat_(model_, dynamic_, replay.policy),
        rng_(replay.seed),
        all_(dynamic_.device.size(), Weights(static_cast<size_t>(replay.shape.experts))),
        decoded_(all_) {
    for (int l = 0; l < replay.shape.layers; ++l) traffic_.emplace_back(replay, rng_.Next());
  }

  ReplayResults Run() {
    const ReplayShape& shape = replay_.shape;
    for (int c = 0; c < shape.conversations; ++c) {
      for (LayerTraffic& layer : traffic_) layer.StartConversation(c);
      Prompt();
      for (int t = 0; t < shape.decode_tokens; t += shape.step_tokens) Decode();
    }
    const auto uniform = PlaceExperts(PlacementStrategy::kUniform, slots_, model_);
    const auto frequency = PlaceExperts(PlacementStrategy::kFrequency, slots_, model_, all_);
    return {Result(HitsOf(uniform), 0, 0), Result(HitsOf(frequency), 0, 0),
            Result(hits_, changes_, move_cost_)};
  }

 private:
  Counts DrawLayer(size_t l, bool prompt, int tokens) {
    Counts counts =
        Draw(traffic_[l].Next(prompt, dynamic_.device[l]), tokens, replay_.shape.top_k, rng_);
    for (size_t e = 0; e < counts.size(); ++e) {
      all_[l][e] += counts[e];
      if (!prompt) decoded_[l][e] += counts[e];
    }
    return counts;
  }

  void Prompt() {
    for (size_t l = 0; l < traffic_.size(); ++l) {
      const Counts counts = DrawLayer(l, true, replay_.shape.prompt_tokens);
      heat_.CountLayerwise(static_cast<int>(l), counts);
      std::vector<int>& held = dynamic_.device[l];
      std::vector<int> chosen =
          ChooseResidents(heat_.heat(static_cast<int>(l)), held, replay_.policy);
      for (int e : chosen) changes_ += !std::binary_search(held.begin(), held.end(), e);
      held = std::move(chosen);
    }
  }

  void Decode() {
    for (size_t l = 0; l < traffic_.size(); ++l) {
      const Counts counts = DrawLayer(l, false, replay_.shape.step_tokens);
      for (int e : dynamic_.device[l]) hits_ += counts[static_cast<size_t>(e)];
      heat_.CountHybrid(static_cast<int>(l), counts, dynamic_.device[l]);
    }
    if (!replay_.background) return;
    const std::vector<int64_t> bytes(traffic_.size(), 1);
    const auto promotions = ChoosePromotions(heat_.heat(), dynamic_, bytes,
                                             static_cast<int64_t>(bytes.size()), replay_.policy);
    if (promotions.empty()) return;
    ApplyPromotions(promotions, &dynamic_);
    heat_.CountChanges(static_cast<int>(promotions.size()));
    changes_ += static_cast<int64_t>(promotions.size());
    move_cost_ += kMoveCost * static_cast<double>(promotions.size());
  }

  double HitsOf(const Placement& placement) const {
    double hits = 0;
    for (size_t l = 0; l < decoded_.size(); ++l) {
      for (int e : placement.device[l]) hits += decoded_[l][static_cast<size_t>(e)];
    }
    return hits;
  }

  ReplayResult Result(double hits, int64_t changes, double move_cost) const {
    double all = 0;
    for (const Weights& layer : decoded_) all = std::accumulate(layer.begin(), layer.end(), all);
    return {hits / all, (all - hits) + kHitCost * hits + move_cost, changes};
  }

  const ReplayCase& replay_;
  const ModelConfig model_;
  const int64_t slots_;
  Placement dynamic_;
  PlacementHeat heat_;
  Rng rng_;
  std::vector<LayerTraffic> traffic_;
  std::vector<Weights> all_, decoded_;  // counts, [layer][expert]
  double hits_ = 0, move_cost_ = 0;
  int64_t changes_ = 0;
};

}  // namespace

ReplayResults Replay(const ReplayCase& replay) { return Replayer(replay).Run(); }

std::string TrafficName(const ReplayCase& replay) {
  switch (replay.traffic) {
    case Traffic::kUniform:
      return "uniform";
    case Traffic::kZipf:
      return "zipf";
    case Traffic::kDrifting:
      return "drifting";
    case Traffic::kRotating:
      return fmt::format("rotating/{}", replay.period);
    case Traffic::kMisleading:
      return "misleading";
    case Traffic::kHostile:
      return "hostile";
  }
  return "";
}

std::vector<ReplayCase> ReplayCases() {
  std::vector<ReplayCase> cases;
  for (double share : {0.1, 0.8}) {
    for (bool background : {false, true}) {
      for (Traffic traffic : {Traffic::kUniform, Traffic::kZipf, Traffic::kDrifting,
                              Traffic::kMisleading, Traffic::kHostile})
        cases.push_back({.traffic = traffic, .resident_share = share, .background = background});
      for (int period : {1, 2, 4, 8, 16, 32}) {
        cases.push_back({.traffic = Traffic::kRotating,
                         .resident_share = share,
                         .period = period,
                         .background = background});
      }
    }
  }
  return cases;
}

std::vector<std::string> MissedBars(const ReplayCase& replay, const ReplayResults& r) {
  std::vector<std::string> missed;
  const bool few = replay.resident_share < 0.5;
  const bool learnable = replay.traffic == Traffic::kZipf || replay.traffic == Traffic::kDrifting;
  if (few && learnable && r.dynamic.hit_rate < 1.2 * r.uniform.hit_rate) {
    missed.push_back(fmt::format("hit rate {:.3f}, less than 1.2 x uniform's {:.3f}",
                                 r.dynamic.hit_rate, r.uniform.hit_rate));
  }
  if (r.dynamic.cost > 1.03 * r.uniform.cost) {
    missed.push_back(
        fmt::format("cost {:.4f} x uniform's, more than 1.03", r.dynamic.cost / r.uniform.cost));
  }
  if (!few && replay.traffic != Traffic::kHostile &&
      r.dynamic.hit_rate < 0.98 * r.frequency.hit_rate) {
    missed.push_back(fmt::format("hit rate {:.3f}, less than 0.98 x that of frequency, {:.3f}",
                                 r.dynamic.hit_rate, r.frequency.hit_rate));
  }
  return missed;
}

}  // namespace kt
