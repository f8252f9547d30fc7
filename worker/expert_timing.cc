// SPDX-License-Identifier: Apache-2.0
#include "worker/expert_timing.h"

#include <algorithm>
#include <chrono>

#include "worker/self_check.h"

namespace kt {
namespace {

bool IsMoe(const LayerConfig& layer) { return layer.moe.has_value(); }

}  // namespace

ExpertTrial MakeExpertTrial(const ModelConfig& config, int rows, bool bf16) {
  const auto layer = std::find_if(config.layers.begin(), config.layers.end(), IsMoe);
  const MoeConfig& moe = config.moes[static_cast<size_t>(*layer->moe)];
  ExpertTrial trial{.layer = static_cast<int>(layer - config.layers.begin()), .rows = rows};
  const int64_t values = int64_t{rows} * moe.width;
  trial.x.resize(static_cast<size_t>(values) * (bf16 ? 2 : 4));
  FixedInput(1, values, bf16, trial.x.data());
  for (int i = 0; i < rows * moe.top_k; ++i) trial.ids.push_back(i % moe.num_experts);
  trial.weights.assign(trial.ids.size(), 1.0f);
  return trial;
}

double MsPerRow(const ModelConfig& config, const ExpertTrial& trial, FunctionRef<void()> run) {
  constexpr int kTries = 3;
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
    best = i == 0 ? ms.count() : std::min(best, ms.count());
  }
  const auto layers = std::count_if(config.layers.begin(), config.layers.end(), IsMoe);
  return best * static_cast<double>(layers) / trial.rows;
}

}  // namespace kt
