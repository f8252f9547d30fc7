// SPDX-License-Identifier: Apache-2.0
// Families that mix a linear attention with grouped-query attention.
#include "common/model/families/parts.h"
#include "common/model/families/rope.h"

namespace kt {
namespace {

constexpr int kConvMax = 64;

AttentionConfig ReadDeltaNet(ConfigReader& r, bool grouped_projections) {
  AttentionConfig a;
  a.kind = AttentionKind::kDeltaNet;
  a.key_heads = r.Int({"linear_num_key_heads"}, 1, kHeadsMax, 16);
  a.value_heads = r.Int({"linear_num_value_heads"}, 1, kHeadsMax, 32);
  a.key_dim = r.Int({"linear_key_head_dim"}, 1, kHeadDimMax, 128);
  a.value_dim = r.Int({"linear_value_head_dim"}, 1, kHeadDimMax, 128);
  a.conv_kernel = r.Int({"linear_conv_kernel_dim"}, 1, kConvMax, 4);
  a.grouped_projections = grouped_projections;
  if (a.value_heads % a.key_heads != 0) {
    r.Refuse("linear_num_value_heads {} is not a multiple of linear_num_key_heads {}",
             a.value_heads, a.key_heads);
  }
  return a;
}

// Gated attention in every full_attention_interval-th layer, or where layer_types says so, a gated
// delta net in the others; a gated shared expert beside the routed ones. All norms but the delta
// net's own multiply by 1 + weight.
void ReadQwenHybrid(ConfigReader& r, ModelConfig& c, bool next) {
  ReadDecoder(r, c, 1e-6);
  c.norm_adds_one = true;
  const int layers = ReadLayerCount(r);
  AttentionConfig a = ReadGqa(r, c, 256);
  a.qk_norm = QkNorm::kPerHead;
  a.qkv_bias = a.o_bias = r.Bool({"attention_bias"}, false);
  a.output_gate = r.Bool({"attn_output_gate"}, true);
  a.rope = 0;
  c.ropes = {ReadRope(r, c, a.head_dim, {.partial_rotary_factor = 0.25})};
  c.attentions = {a, ReadDeltaNet(r, /*grouped_projections=*/next)};
  const auto types = ReadLayerTypes(r, layers, {"full_attention", "linear_attention"});
  const int interval = r.Int({"full_attention_interval"}, 1, kLayersMax, 4);
  std::vector<int> attention;
  for (int l = 0; l < layers; ++l) {
    const bool full =
        types.empty() ? (l + 1) % interval == 0 : types[static_cast<size_t>(l)] == "full_attention";
    attention.push_back(full ? 0 : 1);
  }

  MoeConfig m = ReadMoe(r, c, {"num_experts", "num_local_experts"});
  // Qwen3-Next chooses; Qwen3.5 always normalises, and all of its layers are MoE.
  m.norm_topk_prob = !next || r.Bool({"norm_topk_prob"}, true);
  m.shared_intermediate = r.Int({"shared_expert_intermediate_size"}, 0, kSharedMax, 512);
  m.shared_gate = m.shared_intermediate > 0;
  c.moes = {m};
  c.mtp_layers = ReadMtpLayers(r, "mtp_num_hidden_layers");
  AppendLayers(r, c, attention, next ? SparseLayersByStep(r, layers) : AllLayers(layers, true));
}

}  // namespace

void ReadQwen3Next(ConfigReader& r, ModelConfig& c) { ReadQwenHybrid(r, c, /*next=*/true); }

void ReadQwen35Moe(ConfigReader& r, ModelConfig& c) {
  ReadQwenHybrid(r, c, /*next=*/false);
  c.moes[0].storage = ExpertStorage::kFused;
}

}  // namespace kt
