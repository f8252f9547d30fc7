// SPDX-License-Identifier: Apache-2.0
// What config.json says about how the checkpoint's matrices are stored. Which matrices really are
// quantised is told by the tensors themselves; this says which schemes may occur, and which of them
// a module was meant to have.
#ifndef KT_COMMON_MODEL_QUANTIZATION_CONFIG_H_
#define KT_COMMON_MODEL_QUANTIZATION_CONFIG_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/json.h"

namespace re2 {
class RE2;
}

namespace kt {

// An entry of a list of modules, compiled once.
class ModulePattern {
 public:
  // Entries of `targets` and `ignore`: a whole module name, or "re:" and a regular expression
  // matched from the beginning of the name.
  static absl::StatusOr<ModulePattern> Whole(std::string_view entry);
  // Entries of modules_to_not_convert: as above, or a run of whole dotted parts of the name, in
  // which * stands for any run of characters.
  static absl::StatusOr<ModulePattern> Part(std::string_view entry);

  bool Matches(std::string_view module) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  bool part_ = false;
  std::shared_ptr<const re2::RE2> regex_;  // null: text_ is compared as it is
};

// How the matrices of one scheme lie on disk (docs/formats/weights.md).
enum class WeightScheme {
  kPlain,     // BF16, F16 (F32 where it is small): weight
  kFp8Block,  // F8_E4M3 weight, weight_scale_inv (or weight_scale) [ceil(n / block_rows), ceil(k /
              // block_columns)]
  kFp8Channel,  // F8_E4M3 weight, weight_scale [n] or [n, 1]
  kPackedInt,   // weight_packed I32 [n, ceil(k * bits / 32)], weight_scale [n, ceil(k / group)] or
                // [n, 1], weight_shape
  kMxfp4Fused,  // gpt-oss experts: *_blocks U8 [E, n, k / 32, 16], *_scales U8 [E, n, k / 32]
};

struct QuantizationRule {
  WeightScheme scheme = WeightScheme::kPlain;
  int block_rows = 0, block_columns = 0;  // kFp8Block
  int bits = 0;                           // kPackedInt: 4 or 8
  int group = 0;                          // kPackedInt: columns of a scale; 0: the whole row
  bool every_linear = false;              // targets every matrix that no other rule names
  std::vector<ModulePattern> targets;     // modules it applies to by name
};

struct QuantizationConfig {
  std::vector<QuantizationRule> rules;  // empty: a plain checkpoint
  std::vector<ModulePattern> exempt;    // `ignore`, modules_to_not_convert or ignored_layers

  // The rule of a matrix's module, nullptr: stored plainly. A rule that names the module goes
  // before one for every matrix.
  const QuantizationRule* RuleOf(std::string_view module) const;
};

// Reads the quantization_config of a config.json: quant_method fp8, compressed-tensors
// (float-quantized and pack-quantized) or mxfp4. InvalidArgument: what no engine serves, by field,
// value and what is supported.
absl::StatusOr<QuantizationConfig> ParseQuantizationConfig(const Json& object);

}  // namespace kt

#endif  // KT_COMMON_MODEL_QUANTIZATION_CONFIG_H_
