// SPDX-License-Identifier: Apache-2.0
#include "common/weights/stored_model.h"

#include <string>
#include <string_view>
#include <utility>

#include "common/base/status.h"
#include "common/model/family.h"
#include "common/weights/matrix_reader.h"
#include "common/weights/safetensors.h"

namespace kt {
namespace {

std::string Numbered(std::string_view pattern, size_t index) {
  return fmt::format(fmt::runtime(pattern), index);
}

// What a tensor that no role takes may be, for the message.
struct Explanation {
  std::string_view ending, reason;
};
constexpr Explanation kExplanations[] = {
    {"_zero_point", "asymmetric weights are not served"},
    {"g_idx", "weights in an order of activations are not served"},
    {".qweight", "AWQ and GPTQ packing is not served; convert to compressed-tensors"},
    {".qzeros", "AWQ and GPTQ packing is not served; convert to compressed-tensors"},
    {".k_scale", "scales of a quantised cache are not served"},
    {".v_scale", "scales of a quantised cache are not served"},
    {".input_scale", "stored scales of activations are not served"},
};

class ModelResolver {
 public:
  ModelResolver(const ModelConfig& config, const Family& family, const Checkpoint& checkpoint)
      : config_(config),
        family_(family),
        names_(*family.names),
        checkpoint_(checkpoint),
        reader_(config.quantization, checkpoint) {}

  absl::StatusOr<StoredModel> Resolve(StoredParts parts) {
    StoredModel model;
    model.layers.resize(config_.layers.size());
    // With the experts alone the rest may be there or not, so it is looked at without a word.
    reader_.faults().set_muted(parts == StoredParts::kExperts);
    ResolveEnds(model);
    for (size_t l = 0; l < model.layers.size(); ++l) ResolveRest(l, model.layers[l]);
    reader_.faults().set_muted(false);
    if (parts == StoredParts::kExperts) {
      model = StoredModel();
      model.layers.resize(config_.layers.size());
    }
    for (size_t l = 0; l < model.layers.size(); ++l) ResolveExperts(l, model.layers[l]);
    RefuseUnexpected();
    KT_RETURN_IF_ERROR(reader_.faults().ToStatus(checkpoint_.dir()));
    return model;
  }

 private:
  std::string Body(std::string_view name) const {
    return fmt::format("{}{}", family_.prefix, name);
  }
  std::string LayerPrefix(size_t l) const { return Body(Numbered(names_.layer, l)); }
  std::string HeadModule() const {
    return fmt::format("{}{}", family_.head_prefix, names_.lm_head);
  }

  void ResolveEnds(StoredModel& model) {
    model.embedding = reader_.PlainMatrix(Body(names_.embedding), config_.vocab, config_.hidden);
    model.lm_head = config_.tie_word_embeddings
                        ? model.embedding
                        : reader_.Matrix(HeadModule(), config_.vocab, config_.hidden);
    model.final_norm = reader_.Vector(Body(names_.final_norm), {config_.hidden});
  }

  // Reads what stands behind a prefix.
  struct Scope {
    MatrixReader& reader;
    std::string prefix;
    StoredMatrix Matrix(std::string_view module, int n, int k) const {
      return reader.Matrix(prefix + std::string(module), n, k);
    }
    StoredVector Vector(std::string_view name, const TensorShape& shape) const {
      return reader.Vector(prefix + std::string(name), shape);
    }
    StoredVector Bias(std::string_view module, int n) const {
      return reader.Vector(fmt::format("{}{}.bias", prefix, module), {n});
    }
    StoredFfn Ffn(const std::string_view (&names)[3], int width, int intermediate) const {
      return {Matrix(names[0], intermediate, width), Matrix(names[1], intermediate, width),
              Matrix(names[2], width, intermediate)};
    }
  };

  void ResolveRest(size_t l, StoredLayer& layer) {
    const LayerConfig& lc = config_.layers[l];
    const AttentionConfig& a = config_.attentions[static_cast<size_t>(lc.attention)];
    const Scope scope{reader_, LayerPrefix(l)};
    layer.input_norm = scope.Vector(names_.input_norm, {config_.hidden});
    layer.post_attention_norm = scope.Vector(names_.post_attention_norm, {config_.hidden});
    switch (a.kind) {
      case AttentionKind::kGqa:
        ResolveGqa(scope, a, layer);
        break;
      case AttentionKind::kMla:
        ResolveMla(scope, a, layer);
        if (a.indexer.has_value() && !lc.shares_selection) ResolveIndexer(scope, a, layer);
        break;
      case AttentionKind::kDeltaNet:
        ResolveDeltaNet(scope, a, layer);
        break;
    }
    if (!lc.moe.has_value()) {
      layer.ffn =
          scope.Ffn({names_.gate, names_.up, names_.down}, config_.hidden, lc.dense_intermediate);
      return;
    }
    const MoeConfig& moe = config_.moes[static_cast<size_t>(*lc.moe)];
    layer.router = scope.Vector(names_.router, {moe.num_experts, config_.hidden});
    if (moe.router_bias) layer.router_bias = scope.Vector(names_.router_bias, {moe.num_experts});
    if (moe.correction_bias) {
      layer.correction_bias = scope.Vector(names_.correction_bias, {moe.num_experts});
    }
    if (moe.shared_intermediate > 0) {
      const Scope shared{reader_, scope.prefix + std::string(names_.shared)};
      layer.ffn = shared.Ffn(names_.shared_names, config_.hidden, moe.shared_intermediate);
    }
    if (moe.shared_gate) layer.shared_gate = scope.Vector(names_.shared_gate, {1, config_.hidden});
  }

  void ResolveGqa(const Scope& scope, const AttentionConfig& a, StoredLayer& layer) {
    const int width = a.num_heads * a.head_dim, kv = a.num_kv_heads * a.head_dim;
    const int q = a.output_gate ? 2 * width : width;
    layer.q = scope.Matrix(names_.q, q, config_.hidden);
    layer.k = scope.Matrix(names_.k, kv, config_.hidden);
    layer.v = scope.Matrix(names_.v, kv, config_.hidden);
    layer.o = scope.Matrix(names_.o, config_.hidden, width);
    if (a.qkv_bias) {
      layer.q_bias = scope.Bias(names_.q, q);
      layer.k_bias = scope.Bias(names_.k, kv);
      layer.v_bias = scope.Bias(names_.v, kv);
    }
    if (a.o_bias) layer.o_bias = scope.Bias(names_.o, config_.hidden);
    if (a.qk_norm != QkNorm::kNone) {
      const bool per_head = a.qk_norm == QkNorm::kPerHead;
      layer.q_norm = scope.Vector(names_.q_norm, {per_head ? a.head_dim : width});
      layer.k_norm = scope.Vector(names_.k_norm, {per_head ? a.head_dim : kv});
    }
    if (a.sinks) layer.sinks = scope.Vector(names_.sinks, {a.num_heads});
  }

  void ResolveMla(const Scope& scope, const AttentionConfig& a, StoredLayer& layer) {
    const int q = a.num_heads * (a.nope_dim + a.rope_dim), latent = a.kv_lora_rank + a.rope_dim;
    if (a.q_lora_rank == 0) {
      layer.q = scope.Matrix(names_.q, q, config_.hidden);
    } else {
      layer.q_a = scope.Matrix(names_.q_a, a.q_lora_rank, config_.hidden);
      layer.q_a_norm = scope.Vector(names_.q_a_norm, {a.q_lora_rank});
      layer.q_b = scope.Matrix(names_.q_b, q, a.q_lora_rank);
      if (a.qkv_bias) layer.q_a_bias = scope.Bias(names_.q_a, a.q_lora_rank);
    }
    layer.kv_a = scope.Matrix(names_.kv_a, latent, config_.hidden);
    layer.kv_a_norm = scope.Vector(names_.kv_a_norm, {a.kv_lora_rank});
    layer.kv_b =
        scope.Matrix(names_.kv_b, a.num_heads * (a.nope_dim + a.v_head_dim), a.kv_lora_rank);
    layer.o = scope.Matrix(names_.o, config_.hidden, a.num_heads * a.v_head_dim);
    if (a.qkv_bias) layer.kv_a_bias = scope.Bias(names_.kv_a, latent);
    if (a.o_bias) layer.o_bias = scope.Bias(names_.o, config_.hidden);
  }

  void ResolveIndexer(const Scope& scope, const AttentionConfig& a, StoredLayer& layer) {
    const IndexerConfig& indexer = config_.indexers[static_cast<size_t>(*a.indexer)];
    layer.index_q =
        scope.Matrix(names_.index_q, indexer.num_heads * indexer.head_dim, a.q_lora_rank);
    layer.index_k = scope.Matrix(names_.index_k, indexer.head_dim, config_.hidden);
    layer.index_weights = scope.Matrix(names_.index_weights, indexer.num_heads, config_.hidden);
    layer.index_k_norm = scope.Vector(names_.index_k_norm, {indexer.head_dim});
    layer.index_k_norm_bias = scope.Vector(names_.index_k_norm_bias, {indexer.head_dim});
  }

  void ResolveDeltaNet(const Scope& scope, const AttentionConfig& a, StoredLayer& layer) {
    const int keys = a.key_heads * a.key_dim, values = a.value_heads * a.value_dim;
    const int channels = 2 * keys + values;
    if (a.grouped_projections) {
      layer.delta_qkv = scope.Matrix(names_.delta_qkvz, channels + values, config_.hidden);
      layer.delta_b = scope.Matrix(names_.delta_ba, 2 * a.value_heads, config_.hidden);
    } else {
      layer.delta_qkv = scope.Matrix(names_.delta_qkv, channels, config_.hidden);
      layer.delta_z = scope.Matrix(names_.delta_z, values, config_.hidden);
      layer.delta_b = scope.Matrix(names_.delta_b, a.value_heads, config_.hidden);
      layer.delta_a = scope.Matrix(names_.delta_a, a.value_heads, config_.hidden);
    }
    layer.o = scope.Matrix(names_.delta_o, config_.hidden, values);
    layer.conv = scope.Vector(names_.conv, {channels, 1, a.conv_kernel});
    layer.a_log = scope.Vector(names_.a_log, {a.value_heads});
    layer.dt_bias = scope.Vector(names_.dt_bias, {a.value_heads});
    layer.gated_norm = scope.Vector(names_.gated_norm, {a.value_dim});
  }

  void ResolveExperts(size_t l, StoredLayer& layer) {
    if (!config_.layers[l].moe.has_value()) return;
    const MoeConfig& moe = config_.moes[static_cast<size_t>(*config_.layers[l].moe)];
    const std::string prefix = LayerPrefix(l);
    layer.experts.resize(static_cast<size_t>(moe.num_experts));
    if (moe.storage == ExpertStorage::kFusedInterleaved ||
        (moe.storage == ExpertStorage::kFused && !HasExperts(prefix))) {
      ResolveFusedExperts(prefix, moe, layer.experts);
      return;
    }
    for (size_t e = 0; e < layer.experts.size(); ++e) {
      const Scope expert{reader_, prefix + Numbered(names_.expert, e)};
      layer.experts[e].ffn = expert.Ffn(names_.expert_names, moe.width, moe.intermediate);
    }
  }

  // Whether a layer stores its experts one by one, although the family has them fused.
  bool HasExperts(const std::string& prefix) const {
    const std::string expert = prefix + Numbered(names_.expert, 0);
    auto it = checkpoint_.tensors().lower_bound(expert);
    return it != checkpoint_.tensors().end() && it->first.starts_with(expert);
  }

  void ResolveFusedExperts(const std::string& prefix, const MoeConfig& moe,
                           std::vector<StoredExpert>& experts) {
    const bool interleaved = moe.storage == ExpertStorage::kFusedInterleaved;
    const int rows = 2 * moe.intermediate;
    const std::string gate_up_name = prefix + std::string(names_.fused_gate_up);
    const std::string down_name = prefix + std::string(names_.fused_down);
    const auto gate_up =
        reader_.FusedMatrices(gate_up_name, moe.num_experts, rows, moe.width, interleaved);
    const auto down =
        reader_.FusedMatrices(down_name, moe.num_experts, moe.width, moe.intermediate, interleaved);
    StoredVector gate_up_bias, down_bias;
    if (moe.expert_bias) {
      gate_up_bias = reader_.Vector(gate_up_name + "_bias", {moe.num_experts, rows});
      down_bias = reader_.Vector(down_name + "_bias", {moe.num_experts, moe.width});
    }
    for (int e = 0; e < moe.num_experts; ++e) {
      StoredExpert& expert = experts[static_cast<size_t>(e)];
      expert.ffn.gate = expert.ffn.up = gate_up.Expert(e);
      if (expert.ffn.gate) {
        const MatrixView both = expert.ffn.gate.view;
        expert.ffn.gate.view =
            interleaved ? EveryOtherRow(both, 0) : both.Rows(0, moe.intermediate);
        expert.ffn.up.view =
            interleaved ? EveryOtherRow(both, 1) : both.Rows(moe.intermediate, rows);
      }
      expert.ffn.down = down.Expert(e);
      if (!gate_up_bias || !down_bias) continue;
      const int64_t first = int64_t{e} * rows, step = interleaved ? 2 : 1;
      expert.gate_bias = {gate_up_bias.tensor, moe.intermediate, first, step};
      expert.up_bias = {gate_up_bias.tensor, moe.intermediate,
                        first + (interleaved ? 1 : moe.intermediate), step};
      expert.down_bias = {down_bias.tensor, moe.width, int64_t{e} * moe.width, 1};
    }
  }

  bool IsSkipped(std::string_view name) const {
    if (name.ends_with("rotary_emb.inv_freq")) return true;  // follows from config.json
    for (std::string_view skip : family_.skips) {
      if (name.starts_with(skip)) return true;
    }
    for (int i = 0; i < config_.mtp_layers; ++i) {
      if (name.starts_with(LayerPrefix(config_.layers.size() + static_cast<size_t>(i)))) {
        return true;
      }
    }
    return false;
  }

  std::string Explain(std::string_view name) const {
    if (config_.tie_word_embeddings && name == HeadModule() + ".weight") {
      return ", as config.json says tie_word_embeddings true (set it to false to use this one)";
    }
    for (const Explanation& e : kExplanations) {
      if (name.ends_with(e.ending)) return fmt::format(": {}", e.reason);
    }
    return "";
  }

  void RefuseUnexpected() {
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      if (reader_.Used(tensor) || IsSkipped(name)) continue;
      reader_.faults().Add("unexpected", fmt::format("{}: tensor {} is not expected{}", tensor.file,
                                                     Quoted(name), Explain(name)));
    }
  }

  const ModelConfig& config_;
  const Family& family_;
  const TensorNameTable& names_;
  const Checkpoint& checkpoint_;
  MatrixReader reader_;
};

}  // namespace

absl::StatusOr<StoredModel> ResolveWeights(const ModelConfig& config, const Checkpoint& checkpoint,
                                           StoredParts parts) {
  const Family* family = FindFamily(config.model_type);
  if (family == nullptr) return Internal("no family is called {}", config.model_type);
  return ModelResolver(config, *family, checkpoint).Resolve(parts);
}

}  // namespace kt
