// SPDX-License-Identifier: Apache-2.0
// The table of model families. A family is one row: how its config.json is read and what its
// tensors are called. A family made of parts that exist already is added by writing a reader in
// families/ and a row in families/families.cc.
#ifndef KT_COMMON_MODEL_FAMILY_H_
#define KT_COMMON_MODEL_FAMILY_H_

#include <initializer_list>
#include <span>
#include <string_view>

#include "common/model/config_reader.h"
#include "common/model/model_config.h"

namespace kt {

// Names on disk. `layer` and `expert` hold a {} for the index; the names below stand behind these
// prefixes. Matrices are named by their module, what follows is the format's (".weight",
// ".weight_packed", ...); vectors by their tensor. Empty: no family that uses the table has it.
struct TensorNameTable {
  std::string_view embedding = "embed_tokens", final_norm = "norm.weight", lm_head = "lm_head";
  std::string_view layer = "layers.{}.";
  std::string_view input_norm = "input_layernorm.weight";
  std::string_view post_attention_norm = "post_attention_layernorm.weight";

  // kGqa
  std::string_view q = "self_attn.q_proj", k = "self_attn.k_proj", v = "self_attn.v_proj";
  std::string_view o = "self_attn.o_proj";
  std::string_view q_norm = "self_attn.q_norm.weight", k_norm = "self_attn.k_norm.weight";
  std::string_view sinks = "self_attn.sinks";
  // kMla
  std::string_view q_a = "self_attn.q_a_proj", q_b = "self_attn.q_b_proj";
  std::string_view kv_a = "self_attn.kv_a_proj_with_mqa", kv_b = "self_attn.kv_b_proj";
  std::string_view q_a_norm = "self_attn.q_a_layernorm.weight";
  std::string_view kv_a_norm = "self_attn.kv_a_layernorm.weight";
  std::string_view index_q = "self_attn.indexer.wq_b", index_k = "self_attn.indexer.wk";
  std::string_view index_weights = "self_attn.indexer.weights_proj";
  std::string_view index_k_norm = "self_attn.indexer.k_norm.weight";
  std::string_view index_k_norm_bias = "self_attn.indexer.k_norm.bias";
  // kDeltaNet, with grouped_projections the first two of the inputs, else the last four
  std::string_view delta_qkvz = "linear_attn.in_proj_qkvz", delta_ba = "linear_attn.in_proj_ba";
  std::string_view delta_qkv = "linear_attn.in_proj_qkv", delta_z = "linear_attn.in_proj_z";
  std::string_view delta_b = "linear_attn.in_proj_b", delta_a = "linear_attn.in_proj_a";
  std::string_view delta_o = "linear_attn.out_proj", conv = "linear_attn.conv1d.weight";
  std::string_view a_log = "linear_attn.A_log", dt_bias = "linear_attn.dt_bias";
  std::string_view gated_norm = "linear_attn.norm.weight";

  std::string_view gate = "mlp.gate_proj", up = "mlp.up_proj", down = "mlp.down_proj";
  std::string_view router = "mlp.gate.weight", router_bias = "mlp.gate.bias";
  std::string_view correction_bias = "mlp.gate.e_score_correction_bias";
  std::string_view shared = "mlp.shared_experts.", shared_gate = "mlp.shared_expert_gate.weight";
  // The shared experts' three matrices behind `shared`, the routed ones' behind `expert`.
  std::string_view shared_names[3] = {"gate_proj", "up_proj", "down_proj"};
  std::string_view expert = "mlp.experts.{}.";
  std::string_view expert_names[3] = {"gate_proj", "up_proj", "down_proj"};
  // kFused and kFusedInterleaved: tensors without ".weight"
  std::string_view fused_gate_up = "mlp.experts.gate_up_proj";
  std::string_view fused_down = "mlp.experts.down_proj";
};

struct Family {
  std::string_view model_type;
  std::string_view architecture;
  // Fills everything but model_type, architecture, quantization and token ids. Faults go to the
  // reader; what is filled after one is in bounds.
  void (*read)(ConfigReader& reader, ModelConfig& config);
  const TensorNameTable* names;
  // A model inside a multimodal wrapper: its fields are in config.json's text_config.
  bool wrapped = false;
  // What stands before the names of the table, and before lm_head.
  std::string_view prefix = "model.";
  std::string_view head_prefix = "";
  // Beginnings of names of tensors that such checkpoints carry and that are not used.
  std::span<const std::string_view> skips = {};
};

std::span<const Family> Families();
const Family* FindFamily(std::string_view model_type);  // nullptr: unknown

}  // namespace kt

#endif  // KT_COMMON_MODEL_FAMILY_H_
