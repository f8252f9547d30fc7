// SPDX-License-Identifier: Apache-2.0
// What a checkpoint's config.json says, as data the forward pass is driven by. No class per family:
// a family is a reader of config.json plus a table of tensor names (families.cc). Per-layer facts
// are lists, not rules, so that hybrid families fit.
#ifndef KT_COMMON_MODEL_MODEL_CONFIG_H_
#define KT_COMMON_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/json.h"

namespace kt {

enum class AttentionKind { kGqa };      // next: gated GQA, MLA, MLA + indexer, gated delta net
enum class QkNorm { kNone, kPerHead };  // next: full width
enum class RouterScore { kSoftmax, kSigmoid };
enum class Activation { kSiluGlu };
enum class ResidualKind { kAdd };

// inv_freq[j] = theta^(-2j/rotary_dim). Half-split pairs (j, j + rotary_dim/2); only the first
// rotary_dim components of a head turn.
struct RopeConfig {
  int rotary_dim = 0;
  double theta = 10000;
  bool interleaved = false;
  std::vector<float> inv_freq;  // [rotary_dim / 2], filled by the loader
  float cos_sin_scale = 1;
};

struct AttentionConfig {
  AttentionKind kind = AttentionKind::kGqa;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;  // heads * head_dim need not equal hidden
  bool qkv_bias = false;
  bool o_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  float scale = 0;          // of the scores
  std::optional<int> rope;  // index into ModelConfig::ropes
};

struct MoeConfig {
  int num_experts = 0;
  int top_k = 0;
  int intermediate = 0;         // of one routed expert
  int width = 0;                // of the rows the expert bank takes; hidden today
  int shared_intermediate = 0;  // of all shared experts together; 0: none
  Activation activation = Activation::kSiluGlu;
  RouterScore score = RouterScore::kSoftmax;
  bool correction_bias = false;  // added to the score for the choice only
  int num_groups = 1;
  int topk_groups = 1;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1;
};

struct LayerConfig {
  int attention = 0;       // index into ModelConfig::attentions
  std::optional<int> moe;  // index into ModelConfig::moes; absent: dense
  int dense_intermediate = 0;
};

struct ModelConfig {
  std::string model_type;    // "qwen3_moe"
  std::string architecture;  // "Qwen3MoeForCausalLM"
  int hidden = 0;
  int vocab = 0;
  float rms_norm_eps = 1e-6f;
  bool tie_word_embeddings = false;
  int max_position = 0;
  ResidualKind residual = ResidualKind::kAdd;
  std::vector<RopeConfig> ropes;
  std::vector<AttentionConfig> attentions;
  std::vector<MoeConfig> moes;
  std::vector<LayerConfig> layers;
  int mtp_layers =
      0;  // behind the last layer, for multi-token prediction: not used, skipped on disk
  std::vector<int32_t> eos_token_ids;  // union of config.json and generation_config.json
  std::optional<int32_t> bos_token_id;
};

// Defaults a checkpoint gives for sampling (generation_config.json); absent fields are not set
// there.
struct GenerationDefaults {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
};

// Reads config.json and generation_config.json of a Hugging Face directory. Errors name file,
// field, value and what is supported; an unknown model_type lists the known ones, a
// quantization_config that no engine serves is refused here, before any weight is read.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir);
absl::StatusOr<ModelConfig> ParseModelConfig(const Json& config, const Json& generation_config);
absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const std::string& model_dir);

}  // namespace kt

#endif  // KT_COMMON_MODEL_MODEL_CONFIG_H_
