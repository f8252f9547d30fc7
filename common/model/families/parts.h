// SPDX-License-Identifier: Apache-2.0
// What readers of config.json are put together from. Defaults of absent fields are those of the
// families' own configuration classes; fields that fix a tensor's shape mostly have none.
#ifndef KT_COMMON_MODEL_FAMILIES_PARTS_H_
#define KT_COMMON_MODEL_FAMILIES_PARTS_H_

#include <optional>
#include <string>
#include <vector>

#include "common/model/config_reader.h"
#include "common/model/model_config.h"

namespace kt {

// Far above any published model, low enough that no product of two of them overflows an int and
// that a hostile config.json cannot make the loader allocate much before the first missing tensor
// is found.
constexpr int kDimMax = 1 << 20;     // hidden, intermediate
constexpr int kSharedMax = 1 << 22;  // shared experts together
constexpr int kRankMax = 1 << 16;    // of latent attention
constexpr int kLayersMax = 1024;
constexpr int kHeadsMax = 1024;
constexpr int kHeadDimMax = 4096;
constexpr int kExpertsMax = 8192;  // of one layer

// The readers of families/{gqa,mla,hybrid}.cc.
void ReadQwen2Moe(ConfigReader& r, ModelConfig& c);
void ReadQwen3Moe(ConfigReader& r, ModelConfig& c);
void ReadGlm4Moe(ConfigReader& r, ModelConfig& c);
void ReadMixtral(ConfigReader& r, ModelConfig& c);
void ReadMiniMaxM2(ConfigReader& r, ModelConfig& c);
void ReadGptOss(ConfigReader& r, ModelConfig& c);
void ReadDeepseekV3(ConfigReader& r, ModelConfig& c);
void ReadDeepseekV32(ConfigReader& r, ModelConfig& c);
void ReadGlmMoeDsa(ConfigReader& r, ModelConfig& c);
void ReadGlm4MoeLite(ConfigReader& r, ModelConfig& c);
void ReadQwen3Next(ConfigReader& r, ModelConfig& c);
void ReadQwen35Moe(ConfigReader& r, ModelConfig& c);

// Sizes, activation, dtype: what all families have in common.
void ReadDecoder(ConfigReader& r, ModelConfig& c, double default_eps);
int ReadLayerCount(ConfigReader& r);

// Heads and the scale of grouped-query attention, without rope. Needs c.hidden.
AttentionConfig ReadGqa(ConfigReader& r, const ModelConfig& c,
                        std::optional<int> default_head_dim = std::nullopt);

// One entry a layer, each in `known`; absent: empty.
std::vector<std::string> ReadLayerTypes(ConfigReader& r, int layers, ConfigReader::Spellings known);

// c.attentions = {full, windowed} and the layers' choice between them: by layer_types, else by
// `windowed_by_default`. Without a window every layer is full.
std::vector<int> WindowedLayers(ConfigReader& r, ModelConfig& c, const AttentionConfig& full,
                                int window, const std::vector<bool>& windowed_by_default);

// The routed experts, routed by softmax. Needs c.hidden.
MoeConfig ReadMoe(ConfigReader& r, const ModelConfig& c, ConfigReader::Spellings num_experts,
                  ConfigReader::Spellings intermediate = {"moe_intermediate_size"},
                  ConfigReader::Spellings top_k = {"num_experts_per_tok"});

// Sigmoid scores with a correction bias, groups, a scaling factor and shared experts, as DeepSeek
// and GLM have them.
struct GroupedMoeDefaults {
  int n_group = 1;
  int topk_group = 1;
  double routed_scaling_factor = 1;
};
MoeConfig ReadGroupedMoe(ConfigReader& r, const ModelConfig& c, const GroupedMoeDefaults& defaults);

// Which layers have experts. Qwen: decoder_sparse_step and mlp_only_layers; DeepSeek and GLM:
// mlp_layer_types, or first_k_dense_replace and moe_layer_freq.
std::vector<bool> SparseLayersByStep(ConfigReader& r, int layers);
std::vector<bool> SparseLayersByPrefix(ConfigReader& r, int layers, int default_dense);

std::vector<bool> AllLayers(int layers, bool value);

// Layers for multi-token prediction behind the last one, to be skipped on disk: one at least, as
// some checkpoints carry what config.json does not count.
int ReadMtpLayers(ConfigReader& r, std::string_view field);

// Layer l: c.attentions[attention[l]], c.moes[0] where sparse[l], else dense.
void AppendLayers(ConfigReader& r, ModelConfig& c, const std::vector<int>& attention,
                  const std::vector<bool>& sparse);

}  // namespace kt

#endif  // KT_COMMON_MODEL_FAMILIES_PARTS_H_
