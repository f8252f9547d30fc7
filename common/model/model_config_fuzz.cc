// SPDX-License-Identifier: Apache-2.0
// config.json as bytes: what is accepted must be fit to be computed with.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/model/model_config.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

template <typename T>
bool Indexes(int i, const std::vector<T>& list) {
  return i >= 0 && i < static_cast<int>(list.size());
}

void CheckAttention(const kt::ModelConfig& c, const kt::AttentionConfig& a) {
  if (a.rope.has_value()) Require(Indexes(*a.rope, c.ropes));
  switch (a.kind) {
    case kt::AttentionKind::kGqa:
      Require(a.head_dim > 0 && a.num_kv_heads > 0 && a.num_heads % a.num_kv_heads == 0);
      Require(a.num_heads > 0 && a.window >= 0 && a.rope.has_value());
      Require(c.ropes[static_cast<size_t>(*a.rope)].rotary_dim <= a.head_dim);
      Require(std::isfinite(a.scale) && a.scale > 0);
      return;
    case kt::AttentionKind::kMla:
      Require(a.num_heads > 0 && a.q_lora_rank >= 0 && a.kv_lora_rank > 0 && a.nope_dim > 0);
      Require(a.rope_dim > 0 && a.v_head_dim > 0 && a.rope.has_value());
      Require(c.ropes[static_cast<size_t>(*a.rope)].rotary_dim == a.rope_dim);
      Require(std::isfinite(a.scale) && a.scale > 0);
      if (a.indexer.has_value()) Require(Indexes(*a.indexer, c.indexers) && a.q_lora_rank > 0);
      return;
    case kt::AttentionKind::kDeltaNet:
      Require(a.key_heads > 0 && a.value_heads > 0 && a.value_heads % a.key_heads == 0);
      Require(a.key_dim > 0 && a.value_dim > 0 && a.conv_kernel > 0);
      return;
  }
}

void CheckMoe(const kt::MoeConfig& m) {
  Require(m.top_k >= 1 && m.top_k <= m.num_experts && m.intermediate > 0 && m.width > 0);
  Require(m.num_groups >= 1 && m.num_experts % m.num_groups == 0);
  Require(m.topk_groups >= 1 && m.topk_groups <= m.num_groups && m.shared_intermediate >= 0);
  Require(m.top_k <= m.topk_groups * (m.num_experts / m.num_groups));
  Require(m.shared_intermediate > 0 || !m.shared_gate);
  Require(m.activation_limit > 0 && m.routed_scaling_factor > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto json = kt::ParseJson(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!json.ok()) return 0;
  auto config = kt::ParseModelConfig(*json, *json);
  if (!config.ok()) return 0;
  Require(config->hidden > 0 && config->vocab > 0 && !config->layers.empty());
  for (const kt::RopeConfig& r : config->ropes) {
    Require(r.rotary_dim >= 2 && r.inv_freq.size() * 2 == static_cast<size_t>(r.rotary_dim));
    for (float f : r.inv_freq) Require(std::isfinite(f) && f >= 0);
    Require(std::isfinite(r.cos_sin_scale) && r.cos_sin_scale > 0);
  }
  for (const kt::AttentionConfig& a : config->attentions) CheckAttention(*config, a);
  for (const kt::IndexerConfig& i : config->indexers) {
    Require(i.num_heads > 0 && i.head_dim > 0 && i.top_k > 0 &&
            Indexes(i.rope.value(), config->ropes));
    Require(config->ropes[static_cast<size_t>(*i.rope)].rotary_dim <= i.head_dim);
  }
  for (const kt::MoeConfig& m : config->moes) CheckMoe(m);
  for (const kt::LayerConfig& l : config->layers) {
    Require(Indexes(l.attention, config->attentions));
    Require(l.moe.has_value() ? Indexes(*l.moe, config->moes) : l.dense_intermediate > 0);
  }
  Require(!config->layers[0].shares_selection);
  for (const kt::QuantizationRule& rule : config->quantization.rules) {
    switch (rule.scheme) {
      case kt::WeightScheme::kFp8Block:
        Require(rule.block_rows > 0 && rule.block_columns > 0);
        break;
      case kt::WeightScheme::kPackedInt:
        Require((rule.bits == 4 || rule.bits == 8) && rule.group >= 0 && rule.group % 2 == 0);
        break;
      case kt::WeightScheme::kFp8Channel:
      case kt::WeightScheme::kMxfp4Fused:
        break;
      case kt::WeightScheme::kPlain:
        Require(false);
    }
  }
  config->quantization.RuleOf("model.layers.0.mlp.experts.0.up_proj");
  for (int32_t id : config->eos_token_ids) Require(id >= 0 && id < config->vocab);
  return 0;
}
