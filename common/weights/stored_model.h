// SPDX-License-Identifier: Apache-2.0
// The weights of a model as they lie in a checkpoint, found by role and checked: every matrix a
// view with its own format, every vector an address. Resolving reads headers only, never a weight.
#ifndef KT_COMMON_WEIGHTS_STORED_MODEL_H_
#define KT_COMMON_WEIGHTS_STORED_MODEL_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/base/weight_matrix.h"
#include "common/model/model_config.h"
#include "common/weights/checkpoint.h"

namespace kt {

// Empty where the model has no such tensor. Tensors belong to the checkpoint.
struct StoredMatrix {
  MatrixView view;
  const TensorInfo* codes = nullptr;
  const TensorInfo* scales = nullptr;  // null: unscaled
  // Rows of the same tensor that follow those of `view`: where a shard of stacked projections
  // (tensor_shard.h) is no single run of rows.
  std::vector<MatrixView> more;
  explicit operator bool() const { return codes != nullptr; }
};

// n values first, first + step, ... of a BF16, F16 or F32 tensor.
struct StoredVector {
  const TensorInfo* tensor = nullptr;
  int64_t n = 0;
  int64_t first = 0;
  int64_t step = 1;
  std::vector<StoredVector> more;  // values of the same tensor that follow
  explicit operator bool() const { return tensor != nullptr; }
  int64_t size() const;
  void Read(float* out) const;  // [size()]
};

struct StoredFfn {
  StoredMatrix gate, up, down;  // [intermediate, width] twice, [width, intermediate]
};

struct StoredExpert {
  StoredFfn ffn;
  StoredVector gate_bias, up_bias, down_bias;
};

// Shapes follow from AttentionConfig and MoeConfig; H = hidden.
struct StoredLayer {
  StoredVector input_norm, post_attention_norm;  // [H]
  StoredMatrix o;                                // [H, width of the attention's output]
  StoredVector o_bias;
  // kGqa: q [heads * head_dim (twice with output_gate), H], k and v [kv_heads * head_dim, H]; kMla
  // without q_lora_rank: q [heads * (nope + rope), H].
  StoredMatrix q, k, v;
  StoredVector q_bias, k_bias, v_bias;
  StoredVector q_norm, k_norm, sinks;
  // kMla: q_a [q_lora, H], q_b [heads * (nope + rope), q_lora], kv_a [kv_lora + rope, H],
  // kv_b [heads * (nope + v_head_dim), kv_lora].
  StoredMatrix q_a, q_b, kv_a, kv_b;
  StoredVector q_a_bias, kv_a_bias, q_a_norm, kv_a_norm;
  // Indexer: index_q [index heads * head_dim, q_lora], index_k [head_dim, H], index_weights [index
  // heads, H].
  StoredMatrix index_q, index_k, index_weights;
  StoredVector index_k_norm, index_k_norm_bias;
  // kDeltaNet: grouped_projections: delta_qkv holds in_proj_qkvz and delta_b in_proj_ba, delta_z
  // and delta_a are empty.
  StoredMatrix delta_qkv, delta_z, delta_b, delta_a;
  StoredVector conv;            // [channels * conv_kernel], channels: all q, all k, all v
  StoredVector a_log, dt_bias;  // [value_heads]
  StoredVector gated_norm;      // [value_dim]
  // Dense layer, or the shared experts of a MoE layer.
  StoredFfn ffn;
  // MoE layer.
  StoredVector router;       // [num_experts * H]
  StoredVector router_bias;  // [num_experts]
  StoredVector correction_bias;
  StoredVector shared_gate;  // [H]
  std::vector<StoredExpert> experts;
};

struct StoredModel {
  StoredMatrix embedding, lm_head;  // [vocab, H]; the same tensor where the model ties them
  StoredVector final_norm;          // [H]
  std::vector<StoredLayer> layers;
};

// kExperts: the routed experts alone are needed (--kt-weight-path); the rest of StoredModel stays
// empty, and whatever else the family knows may be there or not.
enum class StoredParts { kAll, kExperts };

// Checks the checkpoint against the model: every expected tensor there with the expected shape in a
// scheme that config.json allows, scales of the right size and dtype beside their codes, nothing
// unexpected (tensors the family is known to carry and not to use, such as MTP layers and vision
// towers, are skipped). Reports the first fault of each kind, at most ten, with file, tensor, what
// was found and what was expected. The checkpoint outlives the result.
absl::StatusOr<StoredModel> ResolveWeights(const ModelConfig& config, const Checkpoint& checkpoint,
                                           StoredParts parts = StoredParts::kAll);

}  // namespace kt

#endif  // KT_COMMON_WEIGHTS_STORED_MODEL_H_
