// SPDX-License-Identifier: Apache-2.0
// Expected results of a tiny checkpoint: DIR/golden.json and DIR/golden.safetensors
// (tests/data/models/README.md lists the fields).
#ifndef KT_CLI_SELFTEST_GOLDEN_H_
#define KT_CLI_SELFTEST_GOLDEN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/json.h"

namespace kt {

struct GoldenTensor {
  std::vector<int64_t> shape;  // at least one dimension, none of them 0
  std::vector<float> values;   // F32 tensors
  std::vector<int32_t> ints;   // I32 tensors
};

// Noise of a bf16 run of the reference against its own fp32 run; absent where not recorded.
struct Bf16Noise {
  double mean_abs = 0;
  double max_abs = 0;
};

class Golden {
 public:
  static absl::StatusOr<Golden> Load(const std::string& dir);

  const std::vector<std::string>& prompts() const { return prompts_; }  // "short", "medium", "long"
  // nullptr: not recorded for this checkpoint.
  const GoldenTensor* Find(const std::string& name) const;
  Bf16Noise noise(const std::string& prompt) const;
  // Layers with "short.routing.<layer>.expert_ids".
  std::vector<int> routed_layers() const;
  // Layers with "<prompt>.indexer.<layer>.last_topk".
  std::vector<int> indexed_layers(const std::string& prompt) const;

 private:
  std::map<std::string, GoldenTensor> tensors_;
  std::vector<std::string> prompts_;
  std::map<std::string, Bf16Noise> noise_;
};

}  // namespace kt

#endif  // KT_CLI_SELFTEST_GOLDEN_H_
