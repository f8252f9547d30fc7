// SPDX-License-Identifier: Apache-2.0
// Families with grouped-query attention in every layer.
#include "common/model/families/parts.h"
#include "common/model/families/rope.h"

namespace kt {
namespace {

constexpr int kWindowMax = 1 << 28;

std::vector<int> FullAttention(ConfigReader& r, ModelConfig& c, const AttentionConfig& a,
                               int layers) {
  ReadLayerTypes(r, layers, {"full_attention"});
  c.attentions = {a};
  return std::vector<int>(static_cast<size_t>(layers), 0);
}

// Qwen: sliding_window counts only where use_sliding_window is true.
int QwenWindow(ConfigReader& r) {
  if (!r.Bool({"use_sliding_window"}, false)) return 0;
  return r.Int({"sliding_window"}, 1, kWindowMax, 4096);
}

}  // namespace

void ReadQwen2Moe(ConfigReader& r, ModelConfig& c) {
  ReadDecoder(r, c, 1e-6);
  const int layers = ReadLayerCount(r);
  AttentionConfig a = ReadGqa(r, c);
  a.qkv_bias = r.Bool({"qkv_bias"}, true);
  a.rope = 0;
  c.ropes = {ReadRope(r, c, a.head_dim, {.partial = false})};
  // Every other layer up to max_window_layers slides, where sliding is on at all.
  const int windowed_layers = r.Int({"max_window_layers"}, 0, kWindowMax, 28);
  std::vector<bool> windowed;
  for (int l = 0; l < layers; ++l) windowed.push_back(l % 2 == 0 && l < windowed_layers);
  const std::vector<int> attention = WindowedLayers(r, c, a, QwenWindow(r), windowed);

  MoeConfig m = ReadMoe(r, c, {"num_experts", "num_local_experts"});
  m.norm_topk_prob = r.Bool({"norm_topk_prob"}, false);
  m.shared_intermediate = r.Int({"shared_expert_intermediate_size"}, 0, kSharedMax, 5632);
  m.shared_gate = m.shared_intermediate > 0;
  c.moes = {m};
  AppendLayers(r, c, attention, SparseLayersByStep(r, layers));
}

void ReadQwen3Moe(ConfigReader& r, ModelConfig& c) {
  ReadDecoder(r, c, 1e-6);
  const int layers = ReadLayerCount(r);
  AttentionConfig a = ReadGqa(r, c);
  a.qk_norm = QkNorm::kPerHead;
  a.qkv_bias = a.o_bias = r.Bool({"attention_bias"}, false);
  a.rope = 0;
  c.ropes = {ReadRope(r, c, a.head_dim, {.partial = false})};
  const std::vector<int> attention =
      WindowedLayers(r, c, a, QwenWindow(r), AllLayers(layers, true));

  MoeConfig m = ReadMoe(r, c, {"num_experts", "num_local_experts"});
  m.norm_topk_prob = r.Bool({"norm_topk_prob"}, false);
  c.moes = {m};
  AppendLayers(r, c, attention, SparseLayersByStep(r, layers));
}

void ReadGlm4Moe(ConfigReader& r, ModelConfig& c) {
  ReadDecoder(r, c, 1e-5);
  const int layers = ReadLayerCount(r);
  AttentionConfig a = ReadGqa(r, c);
  a.qk_norm = r.Bool({"use_qk_norm"}, false) ? QkNorm::kPerHead : QkNorm::kNone;
  a.qkv_bias = r.Bool({"attention_bias"}, false);  // none on o
  a.rope = 0;
  c.ropes = {ReadRope(r, c, a.head_dim, {.partial_rotary_factor = 0.5})};
  c.moes = {ReadGroupedMoe(r, c, {})};
  c.mtp_layers = ReadMtpLayers(r, "num_nextn_predict_layers");
  AppendLayers(r, c, FullAttention(r, c, a, layers), SparseLayersByPrefix(r, layers, 1));
}

void ReadMixtral(ConfigReader& r, ModelConfig& c) {
  ReadDecoder(r, c, 1e-5);
  const int layers = ReadLayerCount(r);
  AttentionConfig a = ReadGqa(r, c);
  a.rope = 0;
  c.ropes = {ReadRope(r, c, a.head_dim, {.theta = 1e6, .partial = false})};
  const int window = r.Int({"sliding_window"}, 0, kWindowMax, 0);
  const std::vector<int> attention = WindowedLayers(r, c, a, window, AllLayers(layers, true));
  // The chosen experts' weights always add up to one.
  c.moes = {ReadMoe(r, c, {"num_local_experts", "num_experts"}, {"intermediate_size"})};
  AppendLayers(r, c, attention, AllLayers(layers, true));
}

void ReadMiniMaxM2(ConfigReader& r, ModelConfig& c) {
  ReadDecoder(r, c, 1e-6);
  const int layers = ReadLayerCount(r);
  AttentionConfig a = ReadGqa(r, c, 128);
  r.Only({"qk_norm_type"}, {"per_layer"});
  a.qk_norm = r.Bool({"use_qk_norm"}, true) ? QkNorm::kFullWidth : QkNorm::kNone;
  a.rope = 0;
  c.ropes = {ReadRope(r, c, a.head_dim, {.theta = 5e6})};
  for (int kind : r.Ints({"attn_type_list"}, 0, 1)) {
    if (kind != 1) r.Refuse("attn_type_list holds {}; supported: 1, full attention", kind);
  }
  if (r.Says("sliding_window")) {
    r.Refuse("sliding_window {} is not supported for minimax_m2; supported: null",
             r.Excerpt("sliding_window"));
  }
  if (r.Says("shared_intermediate_size")) {
    r.Refuse("shared_intermediate_size {} is not supported for minimax_m2; supported: 0",
             r.Excerpt("shared_intermediate_size"));
  }
  r.Only({"scoring_func"}, {"sigmoid"});
  MoeConfig m = ReadMoe(r, c, {"num_local_experts", "num_experts"}, {"intermediate_size"});
  m.score = RouterScore::kSigmoid;
  m.correction_bias = r.Bool({"use_routing_bias"}, true);
  c.moes = {m};
  c.mtp_layers = ReadMtpLayers(r, "num_mtp_modules");
  AppendLayers(r, c, FullAttention(r, c, a, layers), AllLayers(layers, true));
}

void ReadGptOss(ConfigReader& r, ModelConfig& c) {
  ReadDecoder(r, c, 1e-5);
  const int layers = ReadLayerCount(r);
  AttentionConfig a = ReadGqa(r, c, 64);
  a.qkv_bias = a.o_bias = r.Bool({"attention_bias"}, true);
  a.sinks = true;
  a.rope = 0;
  if (!r.Has("rope_scaling") && !r.Has("rope_parameters")) r.Refuse("rope_scaling is missing");
  c.ropes = {ReadRope(r, c, a.head_dim, {.theta = 150000, .partial = false})};
  std::vector<bool> windowed;
  for (int l = 0; l < layers; ++l) windowed.push_back(l % 2 == 0);
  const int window = r.Int({"sliding_window"}, 0, kWindowMax, 128);
  const std::vector<int> attention = WindowedLayers(r, c, a, window, windowed);

  MoeConfig m = ReadMoe(r, c, {"num_local_experts", "num_experts"}, {"intermediate_size"},
                        {"num_experts_per_tok", "experts_per_token"});
  m.activation = Activation::kSwigluOai;
  m.activation_alpha = static_cast<float>(r.Number({"swiglu_alpha"}, 1e-3, 1e3, 1.702));
  m.activation_limit = static_cast<float>(r.Number({"swiglu_limit"}, 1e-3, 1e6, 7.0));
  m.expert_bias = true;
  m.router_bias = true;
  m.storage = ExpertStorage::kFusedInterleaved;
  c.moes = {m};
  AppendLayers(r, c, attention, AllLayers(layers, true));
}

}  // namespace kt
