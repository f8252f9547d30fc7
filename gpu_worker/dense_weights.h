// SPDX-License-Identifier: Apache-2.0
// The weights that every token passes, in device memory: embedding, attention, norms, router, dense
// and shared FFN, head.
#ifndef KT_GPU_WORKER_DENSE_WEIGHTS_H_
#define KT_GPU_WORKER_DENSE_WEIGHTS_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/parallel.h"
#include "common/model/model_config.h"
#include "common/weights/checkpoint.h"
#include "gpu_worker/device.h"
#include "gpu_worker/ops.h"

namespace kt {

struct FfnWeights {
  LinearWeight gate, up, down;
};

struct LayerWeights {
  const float* input_norm = nullptr;           // [hidden]
  const float* post_attention_norm = nullptr;  // [hidden]
  LinearWeight q, k, v, o;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  FfnWeights ffn;                 // dense layer, or the shared experts of a MoE layer (n 0: none)
  const float* router = nullptr;  // [num_experts, hidden]
  const float* correction_bias = nullptr;  // [num_experts] or null
};

// Immutable after Load.
class DenseWeights {
 public:
  static size_t Bytes(const ModelConfig& config);
  // The checkpoint has passed CheckManifest. `progress` gets the bytes of the checkpoint read so
  // far.
  static absl::StatusOr<DenseWeights> Load(const ModelConfig& config, const Checkpoint& checkpoint,
                                           Device& device, Parallel& parallel,
                                           const std::function<void(uint64_t)>& progress);

  LinearWeight embedding, head;  // the same memory where the model ties them
  const float* final_norm = nullptr;
  std::vector<LayerWeights> layers;
  size_t bytes() const { return memory_.bytes(); }

 private:
  DeviceBuffer memory_;
};

}  // namespace kt

#endif  // KT_GPU_WORKER_DENSE_WEIGHTS_H_
