// SPDX-License-Identifier: Apache-2.0
// A worker's kernels against the scalar reference, on its own weights and fixed inputs. What
// differs by more than rounding can is a broken kernel, a broken processor or damaged weights; all
// of them give wrong text without any other sign.
#ifndef KT_WORKER_SELF_CHECK_H_
#define KT_WORKER_SELF_CHECK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/parallel.h"
#include "common/model/model_config.h"
#include "worker/expert_bank.h"

namespace kt {

struct SelfCheckRow {
  int layer;  // -1: belongs to no layer
  std::string part;
  std::string precision;
  double error;  // largest difference relative to the largest value
  double bound;
};

// What rounding to bf16, or to int8, may differ where values lie at a tie: a flip of one of the
// activation's values moves a result by its last place, 2^-8 of it or 1/127 of the row's largest.
constexpr double SelfCheckBound(bool rounds) { return rounds ? 0.02 : 1e-4; }

// `count` activations in (-1, 1) that depend on `seed` alone, into x (bf16 or fp32).
void FixedInput(uint64_t seed, int64_t count, bool bf16, void* x);
// Largest |got - want| over the largest |want|; infinite where either is not finite.
double RelativeError(const float* got, const float* want, int64_t count);

// InvalidArgument names the first row beyond its bound.
absl::Status CheckRows(const std::vector<SelfCheckRow>& rows);

struct ExpertCheck {
  const ModelConfig* config;
  const ExpertBank* bank;
  const ExpertSets* sets;
  int intermediate;  // rows held of each expert
  Isa isa;
  bool bf16;
  bool rounded = false;  // to int8, activations too
  bool all_layers;       // false: the first layer of each format
  std::function<std::string(int layer)> precision;
};
// The first expert held of each layer, two tokens (with kAmx as many as tiles take).
std::vector<SelfCheckRow> CheckExperts(const ExpertCheck& check, Parallel& parallel);

}  // namespace kt

#endif  // KT_WORKER_SELF_CHECK_H_
