// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>

#include "common/base/status.h"
#include "common/model/family.h"
#include "common/weights/checkpoint.h"

namespace kt {
namespace {

std::string Numbered(std::string_view pattern, size_t index) {
  return fmt::format(fmt::runtime(pattern), index);
}

LayerTensors LayerNames(const ModelConfig& config, const LayerConfig& layer,
                        const TensorNameTable& table, const std::string& prefix) {
  auto name = [&](std::string_view rest) { return prefix + std::string(rest); };
  const AttentionConfig& attention = config.attentions[static_cast<size_t>(layer.attention)];
  LayerTensors t;
  t.input_norm = name(table.input_norm);
  t.post_attention_norm = name(table.post_attention_norm);
  t.q = name(table.q);
  t.k = name(table.k);
  t.v = name(table.v);
  t.o = name(table.o);
  if (attention.qkv_bias) {
    t.q_bias = name(table.q_bias);
    t.k_bias = name(table.k_bias);
    t.v_bias = name(table.v_bias);
  }
  if (attention.qk_norm != QkNorm::kNone) {
    t.q_norm = name(table.q_norm);
    t.k_norm = name(table.k_norm);
  }
  if (!layer.moe.has_value()) {
    t.gate = name(table.gate);
    t.up = name(table.up);
    t.down = name(table.down);
    return t;
  }
  const MoeConfig& moe = config.moes[static_cast<size_t>(*layer.moe)];
  t.router = name(table.router);
  if (moe.correction_bias) t.correction_bias = name(table.correction_bias);
  if (moe.shared_intermediate > 0) {
    t.shared_gate = name(table.shared_gate);
    t.shared_up = name(table.shared_up);
    t.shared_down = name(table.shared_down);
  }
  t.experts.resize(static_cast<size_t>(moe.num_experts));
  for (size_t e = 0; e < t.experts.size(); ++e) {
    std::string expert = name(Numbered(table.expert, e));
    t.experts[e] = {expert + std::string(table.expert_gate), expert + std::string(table.expert_up),
                    expert + std::string(table.expert_down)};
  }
  return t;
}

}  // namespace

ModelTensors TensorNames(const ModelConfig& config) {
  const Family* family = FindFamily(config.model_type);
  if (family == nullptr) {
    std::fprintf(stderr, "tensor names: unknown model_type %s\n", config.model_type.c_str());
    std::abort();
  }
  const TensorNameTable& table = *family->names;
  ModelTensors t;
  t.embedding = table.embedding;
  t.final_norm = table.final_norm;
  t.lm_head = config.tie_word_embeddings ? table.embedding : table.lm_head;
  for (size_t l = 0; l < config.layers.size(); ++l) {
    t.layers.push_back(LayerNames(config, config.layers[l], table, Numbered(table.layer, l)));
  }
  return t;
}

}  // namespace kt
