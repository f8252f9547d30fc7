// SPDX-License-Identifier: Apache-2.0
// Families with multi-head latent attention: DeepSeek-V3 and what is built like it.
#include <algorithm>
#include <cmath>

#include "common/model/families/parts.h"
#include "common/model/families/rope.h"

namespace kt {
namespace {

// Heads, ranks, rope and scale. The norms of the latents have an eps of their own, whatever
// rms_norm_eps says.
AttentionConfig ReadMla(ConfigReader& r, ModelConfig& c) {
  AttentionConfig a;
  a.kind = AttentionKind::kMla;
  a.num_heads = r.Int({"num_attention_heads"}, 1, kHeadsMax);
  a.q_lora_rank = r.Int({"q_lora_rank"}, 0, kRankMax, 0);
  a.kv_lora_rank = r.Int({"kv_lora_rank"}, 1, kRankMax);
  a.nope_dim = r.Int({"qk_nope_head_dim"}, 1, kHeadDimMax);
  a.rope_dim = r.Int({"qk_rope_head_dim"}, 2, kHeadDimMax);
  a.v_head_dim = r.Int({"v_head_dim"}, 1, kHeadDimMax);
  a.qkv_bias = a.o_bias = r.Bool({"attention_bias"}, false);
  a.scale = static_cast<float>(LatentScaleFactor(r) /
                               std::sqrt(static_cast<double>(a.nope_dim + a.rope_dim)));
  a.rope = 0;
  RopeConfig rope = ReadRope(r, c, a.rope_dim, {});
  if (rope.rotary_dim != a.rope_dim) {
    r.Refuse("partial_rotary_factor {} is not supported beside qk_rope_head_dim; supported: 1",
             r.Excerpt("partial_rotary_factor"));
  }
  rope.interleaved = r.Bool({"rope_interleave"}, true);
  c.ropes = {rope};
  return a;
}

// The same angles as the layer's, paired the indexer's own way.
IndexerConfig ReadIndexer(ConfigReader& r, ModelConfig& c, const AttentionConfig& a,
                          int default_heads, bool interleaved) {
  IndexerConfig indexer;
  indexer.num_heads = r.Int({"index_n_heads"}, 1, kHeadsMax, default_heads);
  indexer.head_dim = r.Int({"index_head_dim"}, 2, kHeadDimMax, 128);
  indexer.top_k = r.Int({"index_topk"}, 1, 1 << 28, 2048);
  indexer.weight_scale =
      static_cast<float>(1 / std::sqrt(double{1} * indexer.num_heads * indexer.head_dim));
  if (a.rope_dim > indexer.head_dim) {
    r.Refuse("qk_rope_head_dim {} is more than index_head_dim {}", a.rope_dim, indexer.head_dim);
  }
  if (a.q_lora_rank == 0) {
    r.Refuse("q_lora_rank {} is not supported beside an indexer, which reads the query's latent",
             r.Excerpt("q_lora_rank"));
  }
  c.ropes.push_back(c.ropes[0]);
  c.ropes.back().interleaved = interleaved;
  indexer.rope = 1;
  return indexer;
}

void AppendMlaLayers(ConfigReader& r, ModelConfig& c, const AttentionConfig& a, int default_dense) {
  const int layers = ReadLayerCount(r);
  ReadLayerTypes(r, layers, {"full_attention", "deepseek_sparse_attention", "indexed_attention"});
  c.attentions = {a};
  c.mtp_layers = ReadMtpLayers(r, "num_nextn_predict_layers");
  AppendLayers(r, c, std::vector<int>(static_cast<size_t>(layers), 0),
               SparseLayersByPrefix(r, layers, default_dense));
}

// Which layers use the selection of the one before: named one by one (indexer_types,
// index_topk_pattern), or all but every index_topk_freq-th from index_skip_topk_offset on.
std::vector<bool> SharedSelections(ConfigReader& r, int layers) {
  const int freq = r.Int({"index_topk_freq"}, 1, kLayersMax, 1);
  const int offset = r.Int({"index_skip_topk_offset"}, 0, kLayersMax, 2);
  std::vector<bool> shared;
  for (int l = 0; l < layers; ++l) shared.push_back(std::max(l - offset + 1, 0) % freq != 0);

  const auto listed = [&](std::string_view field, size_t entries, auto shares) {
    if (entries == 0) return;
    if (entries != shared.size()) {
      r.Refuse("{} has {} entries, num_hidden_layers is {}", field, entries, layers);
      return;
    }
    for (size_t l = 0; l < entries; ++l) shared[l] = shares(l);
  };
  std::string pattern;
  if (r.Has("index_topk_pattern")) pattern = r.String({"index_topk_pattern"});
  if (pattern.find_first_not_of("FS") != std::string::npos) {
    r.Refuse(
        "index_topk_pattern {} is not supported; supported: a letter for each layer, F (full) "
        "or S (shared)",
        r.Excerpt("index_topk_pattern"));
  }
  listed("index_topk_pattern", pattern.size(), [&](size_t l) { return pattern[l] == 'S'; });
  r.Only({"indexer_types"}, {"full", "shared"});
  const std::vector<std::string> types = r.Strings({"indexer_types"});
  listed("indexer_types", types.size(), [&](size_t l) { return types[l] == "shared"; });
  if (shared[0]) {
    r.Refuse(
        "layer 0 shares the selection of a layer before it, and there is none; mend "
        "indexer_types, index_topk_pattern or index_skip_topk_offset");
  }
  return shared;
}

}  // namespace

void ReadDeepseekV3(ConfigReader& r, ModelConfig& c) {
  ReadDecoder(r, c, 1e-6);
  const AttentionConfig a = ReadMla(r, c);
  c.moes = {ReadGroupedMoe(r, c, {.n_group = 8, .topk_group = 4, .routed_scaling_factor = 2.5})};
  AppendMlaLayers(r, c, a, 3);
}

void ReadDeepseekV32(ConfigReader& r, ModelConfig& c) {
  ReadDecoder(r, c, 1e-6);
  AttentionConfig a = ReadMla(r, c);
  if (!c.ropes[0].interleaved || r.Bool({"indexer_rope_interleave"}, false)) {
    r.Refuse(
        "rope_interleave {} with indexer_rope_interleave {} is not supported for deepseek_v32; "
        "supported: true with false",
        r.Excerpt("rope_interleave"), r.Excerpt("indexer_rope_interleave"));
  }
  c.indexers = {ReadIndexer(r, c, a, 64, /*interleaved=*/false)};
  a.indexer = 0;
  c.moes = {ReadGroupedMoe(r, c, {.n_group = 8, .topk_group = 4, .routed_scaling_factor = 2.5})};
  AppendMlaLayers(r, c, a, 3);
}

void ReadGlmMoeDsa(ConfigReader& r, ModelConfig& c) {
  ReadDecoder(r, c, 1e-5);
  AttentionConfig a = ReadMla(r, c);
  c.indexers = {ReadIndexer(r, c, a, 32, r.Bool({"indexer_rope_interleave"}, true))};
  a.indexer = 0;
  c.moes = {ReadGroupedMoe(r, c, {.routed_scaling_factor = 2.5})};
  AppendMlaLayers(r, c, a, 3);
  const std::vector<bool> shared = SharedSelections(r, static_cast<int>(c.layers.size()));
  for (size_t l = 0; l < c.layers.size(); ++l) c.layers[l].shares_selection = shared[l];
}

void ReadGlm4MoeLite(ConfigReader& r, ModelConfig& c) {
  ReadDecoder(r, c, 1e-5);
  const AttentionConfig a = ReadMla(r, c);
  c.moes = {ReadGroupedMoe(r, c, {.routed_scaling_factor = 1.8})};
  AppendMlaLayers(r, c, a, 1);
}

}  // namespace kt
