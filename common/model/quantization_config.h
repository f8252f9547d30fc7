// SPDX-License-Identifier: Apache-2.0
// What config.json says about how the checkpoint's matrices are stored. Which matrices really are
// quantised is told by the tensors themselves; this says which schemes may occur, and which of them
// a module was meant to have.
#ifndef KT_COMMON_MODEL_QUANTIZATION_CONFIG_H_
#define KT_COMMON_MODEL_QUANTIZATION_CONFIG_H_

#include <string>
#include <string_view>
#include <vector>

namespace kt {

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
  // Modules it applies to: class names ("Linear" matches every matrix), module names, or "re:" and
  // a regular expression matched from the beginning of the module's name.
  std::vector<std::string> targets;
};

struct QuantizationConfig {
  std::vector<QuantizationRule> rules;  // empty: a plain checkpoint
  // `ignore` (compressed-tensors) or `modules_to_not_convert`: exempt modules, matched as targets
  // are; entries of modules_to_not_convert also match a whole dotted part of the name or hold * for
  // any run of characters.
  std::vector<std::string> exempt;

  // The rule of a matrix's module, nullptr: stored plainly.
  const QuantizationRule* RuleOf(std::string_view module) const;
};

}  // namespace kt

#endif  // KT_COMMON_MODEL_QUANTIZATION_CONFIG_H_
