// SPDX-License-Identifier: Apache-2.0
// What a step of many rows costs in experts, tried on one layer at start.
#ifndef KT_WORKER_EXPERT_TIMING_H_
#define KT_WORKER_EXPERT_TIMING_H_

#include <cstdint>
#include <vector>

#include "common/base/parallel.h"
#include "common/model/model_config.h"

namespace kt {

// Rows of a layer, routed evenly to all its experts.
struct ExpertTrial {
  int layer = 0;
  int rows = 0;
  std::vector<uint8_t> x;      // [rows, width] of bf16 or fp32
  std::vector<int32_t> ids;    // [rows, top_k]
  std::vector<float> weights;  // [rows, top_k]
};
// Of the first MoE layer; there must be one.
ExpertTrial MakeExpertTrial(const ModelConfig& config, int rows, bool bf16);

// Milliseconds that a row of all MoE layers takes, if `run` does the trial: the best of a few.
double MsPerRow(const ModelConfig& config, const ExpertTrial& trial, FunctionRef<void()> run);

}  // namespace kt

#endif  // KT_WORKER_EXPERT_TIMING_H_
