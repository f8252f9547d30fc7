// SPDX-License-Identifier: Apache-2.0
#include "cli/auto_limits.h"

#include <algorithm>

#include "common/base/status.h"

namespace kt::cli {
namespace {

constexpr int64_t kChunkMax = 2048, kRunningMax = 32, kTotalTokensMax = 262144;

struct Limit {
  const char* flag;
  int64_t RunOptions::*value;
  int64_t least, step;
  int64_t (*most)(const ModelConfig&, const RunOptions&);  // beyond which more brings nothing
};

constexpr Limit kLimits[] = {
    {"--chunked-prefill-size", &RunOptions::chunked_prefill_size, 64, 64,
     [](const ModelConfig& m, const RunOptions&) {
       return std::min<int64_t>(m.max_position, kChunkMax);
     }},
    {"--max-running-requests", &RunOptions::max_running_requests, 1, 1,
     [](const ModelConfig&, const RunOptions&) { return kRunningMax; }},
    {"--max-total-tokens", &RunOptions::max_total_tokens, 256, 16,
     [](const ModelConfig& m, const RunOptions& o) {
       return std::min(o.max_running_requests * m.max_position, kTotalTokensMax);
     }},
    {"--kt-num-gpu-experts", &RunOptions::num_gpu_experts, 0, 1,
     [](const ModelConfig& m, const RunOptions&) {
       int experts = 0;
       for (const MoeConfig& moe : m.moes) experts = std::max(experts, moe.num_experts);
       return int64_t{experts};
     }},
};

}  // namespace

bool HasAutomatic(const RunOptions& options) {
  return std::any_of(std::begin(kLimits), std::end(kLimits),
                     [&](const Limit& limit) { return options.*limit.value == kAutomatic; });
}

RunOptions WithLeast(const RunOptions& options) {
  RunOptions out = options;
  for (const Limit& limit : kLimits) {
    if (out.*limit.value == kAutomatic) out.*limit.value = limit.least;
  }
  return out;
}

absl::StatusOr<std::vector<std::string>> ChooseAutomatic(
    const ModelConfig& model, const std::function<absl::StatusOr<bool>(const RunOptions&)>& fits,
    RunOptions& options) {
  std::vector<const Limit*> asked;
  for (const Limit& limit : kLimits) {
    if (options.*limit.value == kAutomatic) asked.push_back(&limit);
  }
  options = WithLeast(options);
  std::vector<std::string> lines;
  for (const Limit* limit : asked) {
    const int64_t most = std::max(limit->least, limit->most(model, options));
    int64_t low = 0, high = (most - limit->least + limit->step - 1) / limit->step;
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      options.*limit->value = std::min(most, limit->least + middle * limit->step);
      KT_ASSIGN_OR_RETURN(const bool enough, fits(options));
      if (enough) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    const int64_t chosen = std::min(most, limit->least + low * limit->step);
    options.*limit->value = chosen;
    lines.push_back(
        fmt::format("{} auto: {}, {}", limit->flag, chosen,
                    chosen == most ? "more would bring nothing" : "the most that fits"));
  }
  return lines;
}

}  // namespace kt::cli
