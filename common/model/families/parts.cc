// SPDX-License-Identifier: Apache-2.0
#include "common/model/families/parts.h"

#include <algorithm>
#include <cmath>

namespace kt {
namespace {

constexpr int kVocabMax = 1 << 24;
constexpr int kPositionMax = 1 << 28;
constexpr int64_t kAllExpertsMax = 1 << 18;

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

}  // namespace

void ReadDecoder(ConfigReader& r, ModelConfig& c, double default_eps) {
  r.Only({"hidden_act"}, {"silu"});
  r.Only({"torch_dtype", "dtype"}, {"bfloat16", "float16", "float32"});
  c.hidden = r.Int({"hidden_size"}, 1, kDimMax);
  c.vocab = r.Int({"vocab_size"}, 1, kVocabMax);
  c.max_position = r.Int({"max_position_embeddings"}, 1, kPositionMax);
  c.rms_norm_eps = static_cast<float>(r.Number({"rms_norm_eps"}, 0, 1, default_eps));
  c.tie_word_embeddings = r.Bool({"tie_word_embeddings"}, false);
}

int ReadLayerCount(ConfigReader& r) { return r.Int({"num_hidden_layers"}, 1, kLayersMax); }

AttentionConfig ReadGqa(ConfigReader& r, const ModelConfig& c,
                        std::optional<int> default_head_dim) {
  AttentionConfig a;
  a.num_heads = r.Int({"num_attention_heads"}, 1, kHeadsMax);
  a.num_kv_heads = r.Int({"num_key_value_heads"}, 1, kHeadsMax, a.num_heads);
  if (a.num_heads % a.num_kv_heads != 0) {
    r.Refuse("num_attention_heads {} is not a multiple of num_key_value_heads {}", a.num_heads,
             a.num_kv_heads);
  }
  if (!r.Has("head_dim") && !default_head_dim.has_value() && c.hidden % a.num_heads != 0) {
    r.Refuse("head_dim is missing, and hidden_size {} is not a multiple of num_attention_heads {}",
             c.hidden, a.num_heads);
  }
  const int head_dim =
      r.Int({"head_dim"}, 1, kHeadDimMax, default_head_dim.value_or(c.hidden / a.num_heads));
  if (head_dim > kHeadDimMax) {
    r.Refuse(
        "hidden_size {} / num_attention_heads {} is more than the {} dimensions of a head "
        "supported",
        c.hidden, a.num_heads, kHeadDimMax);
  }
  a.head_dim = std::clamp(head_dim, 1, kHeadDimMax);
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  return a;
}

std::vector<std::string> ReadLayerTypes(ConfigReader& r, int layers,
                                        ConfigReader::Spellings known) {
  r.Only({"layer_types"}, known);
  std::vector<std::string> types = r.Strings({"layer_types"});
  if (!types.empty() && types.size() != static_cast<size_t>(layers)) {
    r.Refuse("layer_types has {} entries, num_hidden_layers is {}", types.size(), layers);
    types.clear();
  }
  return types;
}

std::vector<int> WindowedLayers(ConfigReader& r, ModelConfig& c, const AttentionConfig& full,
                                int window, const std::vector<bool>& windowed_by_default) {
  const int layers = static_cast<int>(windowed_by_default.size());
  const auto types = ReadLayerTypes(r, layers, {"full_attention", "sliding_attention"});
  AttentionConfig windowed = full;
  windowed.window = window;
  c.attentions = {full};
  if (window > 0) c.attentions.push_back(windowed);
  std::vector<int> attention;
  for (size_t l = 0; l < windowed_by_default.size(); ++l) {
    const bool slides = types.empty() ? windowed_by_default[l] : types[l] == "sliding_attention";
    attention.push_back(slides && window > 0 ? 1 : 0);
    if (slides && window == 0 && !types.empty()) {
      r.Refuse("layer_types[{}] is \"sliding_attention\" but there is no sliding_window", l);
    }
  }
  return attention;
}

MoeConfig ReadMoe(ConfigReader& r, const ModelConfig& c, ConfigReader::Spellings num_experts,
                  ConfigReader::Spellings intermediate, ConfigReader::Spellings top_k) {
  MoeConfig m;
  m.num_experts = r.Int(num_experts, 1, kExpertsMax);
  m.top_k = r.Int(top_k, 1, kExpertsMax);
  if (m.top_k > m.num_experts) {
    r.Refuse("{} {} is more than {} {}", *top_k.begin(), m.top_k, *num_experts.begin(),
             m.num_experts);
  }
  m.intermediate = r.Int(intermediate, 1, kDimMax);
  m.width = c.hidden;
  return m;
}

MoeConfig ReadGroupedMoe(ConfigReader& r, const ModelConfig& c,
                         const GroupedMoeDefaults& defaults) {
  r.Only({"scoring_func"}, {"sigmoid"});
  r.Only({"topk_method"}, {"noaux_tc"});
  MoeConfig m = ReadMoe(r, c, {"n_routed_experts", "num_local_experts", "num_experts"});
  m.score = RouterScore::kSigmoid;
  m.correction_bias = true;
  m.norm_topk_prob = r.Bool({"norm_topk_prob"}, true);
  m.num_groups = r.Int({"n_group"}, 1, kExpertsMax, defaults.n_group);
  m.topk_groups = r.Int({"topk_group"}, 1, kExpertsMax, defaults.topk_group);
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
  m.routed_scaling_factor = static_cast<float>(
      r.Number({"routed_scaling_factor"}, 1e-6, 1e6, defaults.routed_scaling_factor));
  int shared = r.Int({"n_shared_experts"}, 0, kExpertsMax, 1);
  if (int64_t{shared} * m.intermediate > kSharedMax) {
    r.Refuse("n_shared_experts {} x moe_intermediate_size {} is more than the {} supported", shared,
             m.intermediate, kSharedMax);
  } else {
    m.shared_intermediate = shared * m.intermediate;
  }
  return m;
}

std::vector<bool> AllLayers(int layers, bool value) {
  return std::vector<bool>(static_cast<size_t>(layers), value);
}

int ReadMtpLayers(ConfigReader& r, std::string_view field) {
  return std::max(1, r.Int({field}, 0, 16, 1));
}

std::vector<bool> SparseLayersByStep(ConfigReader& r, int layers) {
  // A layer is dense where it is listed, or where its 1-based number is no multiple of the step.
  const int step = r.Int({"decoder_sparse_step"}, 1, kLayersMax, 1);
  std::vector<bool> sparse(static_cast<size_t>(layers));
  for (int l = 0; l < layers; ++l) sparse[static_cast<size_t>(l)] = (l + 1) % step == 0;
  for (int l : r.Ints({"mlp_only_layers"}, 0, layers - 1)) sparse[static_cast<size_t>(l)] = false;
  return sparse;
}

std::vector<bool> SparseLayersByPrefix(ConfigReader& r, int layers, int default_dense) {
  const int dense = r.Int({"first_k_dense_replace"}, 0, kLayersMax, default_dense);
  const int step = r.Int({"moe_layer_freq"}, 1, kLayersMax, 1);
  std::vector<bool> sparse;
  for (int l = 0; l < layers; ++l) sparse.push_back(l >= dense && l % step == 0);
  r.Only({"mlp_layer_types"}, {"dense", "sparse"});
  const std::vector<std::string> types = r.Strings({"mlp_layer_types"});
  if (types.empty()) return sparse;
  if (types.size() != static_cast<size_t>(layers)) {
    r.Refuse("mlp_layer_types has {} entries, num_hidden_layers is {}", types.size(), layers);
    return sparse;
  }
  for (size_t l = 0; l < types.size(); ++l) {
    const bool listed = types[l] == "sparse";
    if (listed != sparse[l] && r.Has("first_k_dense_replace")) {
      r.Refuse("mlp_layer_types[{}] is \"{}\", which first_k_dense_replace {} contradicts", l,
               types[l], dense);
    }
    sparse[l] = listed;
  }
  return sparse;
}

void AppendLayers(ConfigReader& r, ModelConfig& c, const std::vector<int>& attention,
                  const std::vector<bool>& sparse) {
  for (size_t l = 0; l < sparse.size(); ++l) {
    LayerConfig layer;
    layer.attention = attention[l];
    if (sparse[l]) {
      layer.moe = 0;
    } else {
      layer.dense_intermediate = r.Int({"intermediate_size"}, 1, kDimMax);
    }
    c.layers.push_back(layer);
  }
  CheckExpertCount(r, c);
}

}  // namespace kt
