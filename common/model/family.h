// SPDX-License-Identifier: Apache-2.0
// The table of model families. A family is one row: how its config.json is read and what its
// tensors are called. A family made of parts that exist already is added by writing a reader in
// families.cc and a row at its end.
#ifndef KT_COMMON_MODEL_FAMILY_H_
#define KT_COMMON_MODEL_FAMILY_H_

#include <span>
#include <string_view>

#include "common/model/config_reader.h"
#include "common/model/model_config.h"

namespace kt {

// Names on disk. `layer` and `expert` hold a {} for the index; the names below stand behind these
// prefixes.
struct TensorNameTable {
  std::string_view embedding, final_norm, lm_head;
  std::string_view layer;
  std::string_view input_norm, post_attention_norm;
  std::string_view q, k, v, o, q_bias, k_bias, v_bias, q_norm, k_norm;
  std::string_view gate, up, down;
  std::string_view router, correction_bias;
  std::string_view shared_gate, shared_up, shared_down;
  std::string_view expert, expert_gate, expert_up, expert_down;
};

struct Family {
  std::string_view model_type;
  std::string_view architecture;
  // Fills everything but model_type, architecture and token ids. Faults go to the reader; what is
  // filled after one is in bounds.
  void (*read)(ConfigReader& reader, ModelConfig& config);
  const TensorNameTable* names;
};

std::span<const Family> Families();
const Family* FindFamily(std::string_view model_type);  // nullptr: unknown

}  // namespace kt

#endif  // KT_COMMON_MODEL_FAMILY_H_
