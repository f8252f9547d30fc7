// SPDX-License-Identifier: Apache-2.0
// config.json as bytes: what is accepted must be fit to be computed with.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/model/model_config.h"

namespace {
void Require(bool condition) {
  if (!condition) std::abort();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto json = kt::ParseJson(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!json.ok()) return 0;
  auto config = kt::ParseModelConfig(*json, *json);
  if (!config.ok()) return 0;
  Require(config->hidden > 0 && config->vocab > 0 && !config->layers.empty());
  for (const kt::AttentionConfig& a : config->attentions) {
    Require(a.head_dim > 0 && a.num_kv_heads > 0 && a.num_heads % a.num_kv_heads == 0);
    Require(a.num_heads * a.head_dim > 0);
  }
  for (const kt::RopeConfig& r : config->ropes) {
    Require(r.rotary_dim >= 2 && r.inv_freq.size() * 2 == static_cast<size_t>(r.rotary_dim));
  }
  for (const kt::MoeConfig& m : config->moes) {
    Require(m.top_k >= 1 && m.top_k <= m.num_experts && m.intermediate > 0);
    Require(m.num_groups >= 1 && m.num_experts % m.num_groups == 0);
    Require(m.topk_groups >= 1 && m.topk_groups <= m.num_groups && m.shared_intermediate >= 0);
  }
  for (const kt::LayerConfig& l : config->layers) {
    Require(l.moe.has_value() ? *l.moe < static_cast<int>(config->moes.size())
                              : l.dense_intermediate > 0);
  }
  for (int32_t id : config->eos_token_ids) Require(id >= 0 && id < config->vocab);
  return 0;
}
