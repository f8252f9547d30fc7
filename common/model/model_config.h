// SPDX-License-Identifier: Apache-2.0
// What a checkpoint's config.json says, as data the forward pass is driven by. No class per family:
// a family is a reader of config.json plus a table of tensor names (families.cc). Per-layer facts
// are lists, not rules, so that hybrid families fit.
#ifndef KT_COMMON_MODEL_MODEL_CONFIG_H_
#define KT_COMMON_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/json.h"
#include "common/model/quantization_config.h"

namespace kt {

// kGqa: grouped-query attention. kMla: multi-head latent attention, computed in its absorbed form.
// kDeltaNet: gated delta net, a linear attention with a state of fixed size instead of a cache.
enum class AttentionKind { kGqa, kMla, kDeltaNet };
// kPerHead: one weight [head_dim] for every head. kFullWidth: one over all heads together.
enum class QkNorm { kNone, kPerHead, kFullWidth };
enum class RouterScore { kSoftmax, kSigmoid };
// With L = activation_limit (infinite where a model has none) and g' = min(g, L), u' = clamp(u, -L,
// L):
//   kSiluGlu     silu(g') * u'
//   kSwigluOai   g' * sigmoid(activation_alpha * g') * (u' + 1)
enum class Activation { kSiluGlu, kSwigluOai };
enum class ResidualKind { kAdd };

// inv_freq[j] = theta^(-2j/rotary_dim), stretched by YaRN where config.json says so. Half-split
// pairs (j, j + rotary_dim/2) or interleaved ones (2j, 2j + 1); only the first rotary_dim
// components of what is turned turn.
struct RopeConfig {
  int rotary_dim = 0;
  double theta = 10000;
  bool interleaved = false;
  std::vector<float> inv_freq;  // [rotary_dim / 2], filled by the loader
  float cos_sin_scale = 1;
};

// The sparse indexer of DeepSeek-V3.2 and GLM-5 beside an MLA layer: heads are [rope | rest],
//   score(t, s) = sum over heads h of w_h(t) relu(q_h(t) . k(s)), s <= t; attention sees the top_k
//   best s.
struct IndexerConfig {
  int num_heads = 0;
  int head_dim = 0;
  int top_k = 0;
  std::optional<int>
      rope;  // index into ModelConfig::ropes: the MLA layer's angles, paired its own way
  float norm_eps = 1e-6f;  // of k_norm, a layer norm with bias
  float weight_scale = 0;  // of w: num_heads^-0.5 * head_dim^-0.5
};

// Fields of kinds other than `kind` are unused.
struct AttentionConfig {
  AttentionKind kind = AttentionKind::kGqa;
  int num_heads = 0;
  float scale = 0;          // of the scores
  std::optional<int> rope;  // index into ModelConfig::ropes
  bool qkv_bias = false;
  bool o_bias = false;

  // kGqa
  int num_kv_heads = 0;
  int head_dim = 0;  // heads * head_dim need not equal hidden
  QkNorm qk_norm = QkNorm::kNone;
  bool output_gate = false;  // q_proj rows per head are [query | gate]; output *= sigmoid(gate)
  bool sinks = false;        // one logit per head that takes part in the softmax and has no value
  int window = 0;            // positions a query sees, its own included; 0: all

  // kMla. Heads of q and of the key are [nope | rope]; kv_b_proj rows are per head [nope | v].
  int q_lora_rank = 0;  // 0: q_proj directly from hidden
  int kv_lora_rank = 0;
  int nope_dim = 0;
  int rope_dim = 0;
  int v_head_dim = 0;
  float latent_eps = 1e-6f;    // of q_a_layernorm and kv_a_layernorm
  std::optional<int> indexer;  // index into ModelConfig::indexers

  // kDeltaNet. num_heads is unused; each key head serves value_heads / key_heads value heads.
  int key_heads = 0;
  int value_heads = 0;
  int key_dim = 0;    // of a head
  int value_dim = 0;  // of a head
  int conv_kernel = 0;
  // true: in_proj_qkvz rows per key head [q | k | v.. | z..] and in_proj_ba rows per key head [b..
  // | a..]; false: in_proj_qkv (all q, all k, all v), in_proj_z, in_proj_b, in_proj_a.
  bool grouped_projections = false;
};

// How routed experts lie on disk (tensor names are the family's).
enum class ExpertStorage {
  kPerExpert,         // three matrices each
  kFused,             // gate_up_proj [E, 2I, H] gate rows first, down_proj [E, H, I]
  kFusedInterleaved,  // gate_up_proj [E, 2I, H] rows gate, up, gate, ...; BF16: transposed [E, H,
                      // 2I] and [E, I, H]
};

struct MoeConfig {
  int num_experts = 0;
  int top_k = 0;
  int intermediate = 0;                          // of one routed expert
  int width = 0;                                 // of the rows the expert bank takes; hidden today
  int shared_intermediate = 0;                   // of all shared experts together; 0: none
  bool shared_gate = false;                      // shared experts' output *= sigmoid(gate . x)
  Activation activation = Activation::kSiluGlu;  // of the routed experts
  float activation_alpha = 1;
  float activation_limit = std::numeric_limits<float>::infinity();
  bool expert_bias = false;  // on gate, up and down of the routed experts
  ExpertStorage storage = ExpertStorage::kPerExpert;
  RouterScore score = RouterScore::kSoftmax;
  bool router_bias = false;      // added to the logits
  bool correction_bias = false;  // added to the score for the choice only
  int num_groups = 1;
  int topk_groups = 1;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1;
};

struct LayerConfig {
  int attention = 0;  // index into ModelConfig::attentions
  // An MLA layer with an indexer whose selection is that of the nearest layer before it that has
  // its own.
  bool shares_selection = false;
  std::optional<int> moe;  // index into ModelConfig::moes; absent: dense
  int dense_intermediate = 0;
};

struct ModelConfig {
  std::string model_type;    // "qwen3_moe"
  std::string architecture;  // "Qwen3MoeForCausalLM"
  int hidden = 0;
  int vocab = 0;
  float rms_norm_eps = 1e-6f;
  bool norm_adds_one =
      false;  // RMS norms multiply by 1 + weight (all but the gated norm of a delta net)
  bool tie_word_embeddings = false;
  int max_position = 0;
  ResidualKind residual = ResidualKind::kAdd;
  std::vector<RopeConfig> ropes;
  std::vector<AttentionConfig> attentions;
  std::vector<IndexerConfig> indexers;
  std::vector<MoeConfig> moes;
  std::vector<LayerConfig> layers;
  int mtp_layers =
      0;  // behind the last layer, for multi-token prediction: not used, skipped on disk
  QuantizationConfig quantization;
  std::vector<int32_t> eos_token_ids;  // union of config.json and generation_config.json
  std::optional<int32_t> bos_token_id;
};

// Whether a layer keeps a state of fixed size per sequence (state slots beside cache blocks).
bool HasState(const ModelConfig& config);

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
