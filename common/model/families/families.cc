// SPDX-License-Identifier: Apache-2.0
// Defaults of absent fields are those of the families' own configuration classes; fields that fix a
// tensor's shape have none.
#include <cmath>

#include "common/model/family.h"

namespace kt {
namespace {

// Far above any published model, low enough that no product of two of them overflows an int and
// that a hostile config.json cannot make the loader allocate much before the first missing tensor
// is found.
constexpr int kDimMax = 1 << 20;     // hidden, intermediate
constexpr int kSharedMax = 1 << 22;  // shared experts together
constexpr int kVocabMax = 1 << 24;
constexpr int kPositionMax = 1 << 28;
constexpr int kLayersMax = 1024;
constexpr int kHeadsMax = 1024;
constexpr int kHeadDimMax = 4096;
constexpr int kExpertsMax = 8192;  // of one layer
constexpr int64_t kAllExpertsMax = 1 << 18;

constexpr TensorNameTable kHubNames = {
    .embedding = "model.embed_tokens.weight",
    .final_norm = "model.norm.weight",
    .lm_head = "lm_head.weight",
    .layer = "model.layers.{}.",
    .input_norm = "input_layernorm.weight",
    .post_attention_norm = "post_attention_layernorm.weight",
    .q = "self_attn.q_proj.weight",
    .k = "self_attn.k_proj.weight",
    .v = "self_attn.v_proj.weight",
    .o = "self_attn.o_proj.weight",
    .q_bias = "self_attn.q_proj.bias",
    .k_bias = "self_attn.k_proj.bias",
    .v_bias = "self_attn.v_proj.bias",
    .q_norm = "self_attn.q_norm.weight",
    .k_norm = "self_attn.k_norm.weight",
    .gate = "mlp.gate_proj.weight",
    .up = "mlp.up_proj.weight",
    .down = "mlp.down_proj.weight",
    .router = "mlp.gate.weight",
    .correction_bias = "mlp.gate.e_score_correction_bias",
    .shared_gate = "mlp.shared_experts.gate_proj.weight",
    .shared_up = "mlp.shared_experts.up_proj.weight",
    .shared_down = "mlp.shared_experts.down_proj.weight",
    .expert = "mlp.experts.{}.",
    .expert_gate = "gate_proj.weight",
    .expert_up = "up_proj.weight",
    .expert_down = "down_proj.weight",
};

// What every family here has in common: sizes, activation, dtype. Layers are appended by the
// family.
void ReadDecoder(ConfigReader& r, ModelConfig& c, double default_eps) {
  r.Only({"hidden_act"}, "silu");
  r.Only({"torch_dtype", "dtype"}, "bfloat16");
  r.Only({"layer_types"}, "full_attention");
  c.hidden = r.Int({"hidden_size"}, 1, kDimMax);
  c.vocab = r.Int({"vocab_size"}, 1, kVocabMax);
  c.max_position = r.Int({"max_position_embeddings"}, 1, kPositionMax);
  c.rms_norm_eps = static_cast<float>(r.Number({"rms_norm_eps"}, 0, 1, default_eps));
  c.tie_word_embeddings = r.Bool({"tie_word_embeddings"}, false);
}

int ReadLayerCount(ConfigReader& r) { return r.Int({"num_hidden_layers"}, 1, kLayersMax); }

RopeConfig ReadRope(ConfigReader& r, int head_dim, double default_partial) {
  r.Only({"rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type"}, "default");
  for (std::string_view factor : {"rope_scaling.factor", "rope_parameters.factor"}) {
    if (r.Has(factor) && r.Number({factor}, -1e30, 1e30) != 1) {
      r.Refuse("{} {} is not supported; supported: plain rope without scaling", factor,
               r.Excerpt(factor));
    }
  }
  RopeConfig rope;
  rope.theta = r.Number({"rope_theta", "rope_parameters.rope_theta", "rope_scaling.rope_theta"}, 1,
                        1e15, 10000.0);
  double partial = r.Number({"partial_rotary_factor", "rope_parameters.partial_rotary_factor"}, 0,
                            1, default_partial);
  rope.rotary_dim = static_cast<int>(head_dim * partial);
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0) {
    r.Refuse(
        "head_dim {} x partial_rotary_factor {} gives {} rotary dimensions; they must be even and "
        "at least 2",
        head_dim, partial, rope.rotary_dim);
  }
  for (int j = 0; j < rope.rotary_dim / 2; ++j) {
    rope.inv_freq.push_back(static_cast<float>(std::pow(rope.theta, -2.0 * j / rope.rotary_dim)));
  }
  return rope;
}

// Grouped-query attention with rope, the same in every layer.
void ReadGqa(ConfigReader& r, ModelConfig& c, QkNorm qk_norm, bool qkv_bias,
             double default_partial) {
  AttentionConfig a;
  a.num_heads = r.Int({"num_attention_heads"}, 1, kHeadsMax);
  a.num_kv_heads = r.Int({"num_key_value_heads"}, 1, kHeadsMax, a.num_heads);
  if (a.num_heads % a.num_kv_heads != 0) {
    r.Refuse("num_attention_heads {} is not a multiple of num_key_value_heads {}", a.num_heads,
             a.num_kv_heads);
  }
  if (!r.Has("head_dim") && c.hidden % a.num_heads != 0) {
    r.Refuse("head_dim is missing, and hidden_size {} is not a multiple of num_attention_heads {}",
             c.hidden, a.num_heads);
  }
  a.head_dim = r.Int({"head_dim"}, 1, kHeadDimMax, c.hidden / a.num_heads);
  if (a.head_dim > kHeadDimMax) {
    r.Refuse(
        "hidden_size {} / num_attention_heads {} is more than the {} dimensions of a head "
        "supported",
        c.hidden, a.num_heads, kHeadDimMax);
  }
  a.qkv_bias = qkv_bias;
  a.qk_norm = qk_norm;
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  a.rope = 0;
  c.ropes = {ReadRope(r, a.head_dim, default_partial)};
  c.attentions = {a};
}

// The part of a bank of experts that all families spell alike.
MoeConfig ReadMoe(ConfigReader& r, const ModelConfig& c, ConfigReader::Spellings num_experts,
                  bool default_norm_topk_prob) {
  MoeConfig m;
  m.num_experts = r.Int(num_experts, 1, kExpertsMax);
  m.top_k = r.Int({"num_experts_per_tok"}, 1, kExpertsMax);
  if (m.top_k > m.num_experts) {
    r.Refuse("num_experts_per_tok {} is more than {} {}", m.top_k, *num_experts.begin(),
             m.num_experts);
  }
  m.intermediate = r.Int({"moe_intermediate_size"}, 1, kDimMax);
  m.width = c.hidden;
  m.norm_topk_prob = r.Bool({"norm_topk_prob"}, default_norm_topk_prob);
  return m;
}

void CheckExpertCount(ConfigReader& r, const ModelConfig& c) {
  int64_t experts = 0;
  for (const LayerConfig& layer : c.layers) {
    if (layer.moe.has_value()) experts += c.moes[static_cast<size_t>(*layer.moe)].num_experts;
  }
  if (experts > kAllExpertsMax) {
    r.Refuse("num_hidden_layers {} makes {} experts in all, more than the {} supported",
             c.layers.size(), experts, kAllExpertsMax);
  }
}

void ReadQwen3Moe(ConfigReader& r, ModelConfig& c) {
  ReadDecoder(r, c, 1e-6);
  if (r.Bool({"attention_bias"}, false)) {
    r.Refuse("attention_bias true is not supported for qwen3_moe; supported: false");
  }
  if (r.Bool({"use_sliding_window"}, false) && r.Has("sliding_window")) {
    r.Refuse(
        "sliding_window {} with use_sliding_window true is not supported; supported: full "
        "attention",
        r.Excerpt("sliding_window"));
  }
  ReadGqa(r, c, QkNorm::kPerHead, /*qkv_bias=*/false, /*default_partial=*/1);
  c.moes = {ReadMoe(r, c, {"num_experts", "num_local_experts"}, /*default_norm_topk_prob=*/false)};

  // A layer is dense where it is listed, or where its 1-based number is no multiple of the step.
  int layers = ReadLayerCount(r);
  int step = r.Int({"decoder_sparse_step"}, 1, kLayersMax, 1);
  std::vector<bool> dense(static_cast<size_t>(layers));
  for (int l = 0; l < layers; ++l) dense[static_cast<size_t>(l)] = (l + 1) % step != 0;
  for (int l : r.Ints({"mlp_only_layers"}, 0, layers - 1)) dense[static_cast<size_t>(l)] = true;
  for (bool is_dense : dense) {
    LayerConfig layer;
    if (is_dense) {
      layer.dense_intermediate = r.Int({"intermediate_size"}, 1, kDimMax);
    } else {
      layer.moe = 0;
    }
    c.layers.push_back(layer);
  }
  CheckExpertCount(r, c);
}

void ReadGlm4Moe(ConfigReader& r, ModelConfig& c) {
  ReadDecoder(r, c, 1e-5);
  r.Only({"scoring_func"}, "sigmoid");
  r.Only({"topk_method"}, "noaux_tc");
  QkNorm qk_norm = r.Bool({"use_qk_norm"}, false) ? QkNorm::kPerHead : QkNorm::kNone;
  // attention_bias is on q, k and v only.
  ReadGqa(r, c, qk_norm, r.Bool({"attention_bias"}, false), /*default_partial=*/0.5);

  MoeConfig m =
      ReadMoe(r, c, {"n_routed_experts", "num_local_experts"}, /*default_norm_topk_prob=*/true);
  m.score = RouterScore::kSigmoid;
  m.correction_bias = true;
  m.num_groups = r.Int({"n_group"}, 1, kExpertsMax, 1);
  m.topk_groups = r.Int({"topk_group"}, 1, kExpertsMax, 1);
  int group = m.num_experts / m.num_groups;
  // A group's score is the sum of its two best experts, so it needs two where there is a choice of
  // groups.
  if (m.num_experts % m.num_groups != 0 || m.topk_groups > m.num_groups ||
      (m.num_groups > 1 && group < 2) || m.top_k > m.topk_groups * group) {
    r.Refuse(
        "n_group {} and topk_group {} do not fit {} experts, {} per token: groups are equal, have "
        "two experts or more, and "
        "the chosen ones hold the experts of a token",
        m.num_groups, m.topk_groups, m.num_experts, m.top_k);
  }
  m.routed_scaling_factor = static_cast<float>(r.Number({"routed_scaling_factor"}, 1e-6, 1e6, 1.0));
  int shared = r.Int({"n_shared_experts"}, 0, kExpertsMax, 1);
  if (int64_t{shared} * m.intermediate > kSharedMax) {
    r.Refuse("n_shared_experts {} x moe_intermediate_size {} is more than the {} supported", shared,
             m.intermediate, kSharedMax);
  } else {
    m.shared_intermediate = shared * m.intermediate;
  }
  c.moes = {m};

  int layers = ReadLayerCount(r);
  int first_moe = r.Int({"first_k_dense_replace"}, 0, kLayersMax, 1);
  for (int l = 0; l < layers; ++l) {
    LayerConfig layer;
    if (l < first_moe) {
      layer.dense_intermediate = r.Int({"intermediate_size"}, 1, kDimMax);
    } else {
      layer.moe = 0;
    }
    c.layers.push_back(layer);
  }
  c.mtp_layers = r.Int({"num_nextn_predict_layers"}, 0, 16, 0);
  CheckExpertCount(r, c);
}

constexpr Family kFamilies[] = {
    {"glm4_moe", "Glm4MoeForCausalLM", &ReadGlm4Moe, &kHubNames},
    {"qwen3_moe", "Qwen3MoeForCausalLM", &ReadQwen3Moe, &kHubNames},
};

}  // namespace

std::span<const Family> Families() { return kFamilies; }

const Family* FindFamily(std::string_view model_type) {
  for (const Family& family : kFamilies) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

}  // namespace kt
