// SPDX-License-Identifier: Apache-2.0
// The weights that every token passes, in device memory: embedding, attention, norms, router, dense
// and shared FFN, head. Matrices keep the format that the checkpoint gives them.
#ifndef KT_GPU_WORKER_DENSE_WEIGHTS_H_
#define KT_GPU_WORKER_DENSE_WEIGHTS_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/parallel.h"
#include "common/model/model_config.h"
#include "common/weights/stored_model.h"
#include "gpu_worker/device.h"
#include "gpu_worker/ops.h"

namespace kt {

struct FfnWeights {
  PackedMatrix gate, up, down;  // n 0: none
};

// What the layer's kind of attention does not have is empty. Shapes: common/weights/stored_model.h.
struct AttentionWeights {
  PackedMatrix o;
  PackedMatrix q, k, v;
  const float *q_norm = nullptr, *k_norm = nullptr, *sinks = nullptr;
  PackedMatrix q_a, q_b, kv_a;
  const float *q_a_norm = nullptr, *kv_a_norm = nullptr;
  // kv_b of each head taken apart: [kv_lora, nope] and [v_head_dim, kv_lora].
  std::vector<PackedMatrix> key_up, value_up;
  std::vector<PackedMatrix> expand;  // kv_b of each head as it is, for the plain form; else empty
  PackedMatrix index_q, index_k, index_weights;
  const float *index_k_norm = nullptr, *index_k_norm_bias = nullptr;
  PackedMatrix delta_qkv, delta_z, delta_b, delta_a;
  DeltaNetWeights delta;
};

struct LayerWeights {
  const float* input_norm = nullptr;           // [hidden]
  const float* post_attention_norm = nullptr;  // [hidden]
  AttentionWeights attention;
  FfnWeights ffn;                          // dense layer, or the shared experts of a MoE layer
  const float* router = nullptr;           // [num_experts, hidden]
  const float* router_bias = nullptr;      // [num_experts]
  const float* correction_bias = nullptr;  // [num_experts]
  const float* shared_gate = nullptr;      // [hidden]
};

// Immutable after Load.
class DenseWeights {
 public:
  struct Options {
    // What cannot stay as it is stored keeps its value to 2^-17 instead of rounding to bf16
    // (packed_matrix.h).
    bool exact = false;
    bool plain_latent = false;  // latent attention has a plain form too
  };
  static size_t Bytes(const ModelConfig& config, const StoredModel& stored, const Options& options);
  // `progress` gets the bytes of the checkpoint read so far.
  static absl::StatusOr<DenseWeights> Load(const ModelConfig& config, const StoredModel& stored,
                                           const Options& options, const Checkpoint& checkpoint,
                                           Device& device, Parallel& parallel,
                                           const std::function<void(uint64_t)>& progress);

  PackedMatrix embedding, head;  // the same memory where the model ties them
  const float* final_norm = nullptr;
  std::vector<LayerWeights> layers;
  const DeviceBuffer& memory() const { return memory_; }

 private:
  DeviceBuffer memory_;
};

}  // namespace kt

#endif  // KT_GPU_WORKER_DENSE_WEIGHTS_H_
