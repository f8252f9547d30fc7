// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/near_tie.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "common/base/bf16.h"
#include "common/base/status.h"
#include "common/weights/checkpoint.h"

namespace kt {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kFloatRounding = 1e-6;  // of scores, which the router computes in fp32

absl::StatusOr<std::vector<float>> ReadVector(const TensorInfo& tensor) {
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kBF16) {
    return InvalidArgument("{}: {} is {}, expected F32 or BF16", tensor.file, tensor.name,
                           DTypeName(tensor.dtype));
  }
  std::vector<float> values(tensor.data.size() / DTypeBytes(tensor.dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.dtype == DType::kF32) {
      std::memcpy(&values[i], tensor.data.data() + i * sizeof(float), sizeof(float));
    } else {
      bf16 value;
      std::memcpy(&value, tensor.data.data() + i * sizeof(bf16), sizeof(bf16));
      values[i] = ToFloat(value);
    }
  }
  return values;
}

// The scores that the choice goes by, had every logit been `shift` higher.
std::vector<double> Scores(const RouterRule& rule, std::span<const float> logits, double shift) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (float logit : logits) total += std::exp(logit - max);
  std::vector<double> scores;
  for (size_t e = 0; e < logits.size(); ++e) {
    const double logit = logits[e] + shift;
    scores.push_back(rule.moe.score == RouterScore::kSigmoid ? 1 / (1 + std::exp(-logit))
                                                             : std::exp(logit - max) / total);
    if (!rule.correction_bias.empty()) scores.back() += rule.correction_bias[e];
  }
  return scores;
}

// A group counts as much as its two best experts.
std::vector<double> GroupScores(const std::vector<double>& scores, int groups) {
  const auto size = static_cast<int64_t>(scores.size()) / groups;
  std::vector<double> out;
  for (auto begin = scores.begin(); begin != scores.end(); begin += size) {
    std::vector<double> sorted(begin, begin + size);
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    out.push_back(sorted[0] + (size > 1 ? sorted[1] : 0));
  }
  return out;
}

struct Choice {
  bool follows;  // from the scores
  bool close;
};

// Places are chosen or rejected by descending score; `low` and `high` are the scores with noise.
Choice Judge(const std::vector<bool>& chosen, const std::vector<double>& scores,
             const std::vector<double>& low, const std::vector<double>& high) {
  double worst = kInf, worst_low = kInf, best = -kInf, best_high = -kInf;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (chosen[i]) {
      worst = std::min(worst, scores[i]);
      worst_low = std::min(worst_low, low[i]);
    } else {
      best = std::max(best, scores[i]);
      best_high = std::max(best_high, high[i]);
    }
  }
  return {.follows = worst >= best - kFloatRounding, .close = worst_low <= best_high};
}

std::vector<bool> Best(const std::vector<double>& scores, int count) {
  std::vector<double> sorted = scores;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  std::vector<bool> best;
  for (double score : scores) best.push_back(score >= sorted[static_cast<size_t>(count) - 1]);
  return best;
}

}  // namespace

absl::StatusOr<std::map<int, RouterRule>> LoadRouterRules(const std::string& model_dir) {
  KT_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(model_dir));
  KT_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(model_dir));
  const ModelTensors names = TensorNames(config);
  std::map<int, RouterRule> rules;
  for (size_t l = 0; l < config.layers.size(); ++l) {
    if (!config.layers[l].moe) continue;
    RouterRule rule{config.moes[static_cast<size_t>(*config.layers[l].moe)], {}};
    if (rule.moe.correction_bias) {
      const std::string& name = names.layers[l].correction_bias;
      const TensorInfo* tensor = checkpoint->Find(name);
      if (tensor == nullptr) return InvalidArgument("{}: {} is missing", model_dir, name);
      KT_ASSIGN_OR_RETURN(rule.correction_bias, ReadVector(*tensor));
      if (rule.correction_bias.size() != static_cast<size_t>(rule.moe.num_experts)) {
        return InvalidArgument("{}: {} has {} values for {} experts", tensor->file, name,
                               rule.correction_bias.size(), rule.moe.num_experts);
      }
    }
    rules.emplace(static_cast<int>(l), std::move(rule));
  }
  return rules;
}

bool IsNearTie(const RouterRule& rule, std::span<const float> logits,
               std::span<const int32_t> chosen, double noise) {
  std::vector<double> scores = Scores(rule, logits, 0), low = Scores(rule, logits, -noise),
                      high = Scores(rule, logits, noise);
  bool groups_close = false;
  if (rule.moe.num_groups > 1) {
    const int groups = rule.moe.num_groups;
    const std::vector<double> group_scores = GroupScores(scores, groups);
    const std::vector<bool> kept = Best(group_scores, rule.moe.topk_groups);
    groups_close =
        Judge(kept, group_scores, GroupScores(low, groups), GroupScores(high, groups)).close;
    const size_t size = scores.size() / kept.size();
    for (size_t e = 0; e < scores.size(); ++e) {
      if (!kept[e / size]) scores[e] = low[e] = high[e] = -kInf;
    }
  }
  std::vector<bool> is_chosen(scores.size());
  for (int32_t id : chosen) {
    if (id < 0 || id >= static_cast<int32_t>(scores.size())) return false;
    is_chosen[static_cast<size_t>(id)] = true;
  }
  const Choice choice = Judge(is_chosen, scores, low, high);
  return choice.follows && (choice.close || groups_close);
}

}  // namespace kt
