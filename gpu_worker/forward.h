// SPDX-License-Identifier: Apache-2.0
// The forward pass: one for every model family and device. Rows of all sequences of a step go
// through the layers together.
#ifndef KT_GPU_WORKER_FORWARD_H_
#define KT_GPU_WORKER_FORWARD_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/attention_block.h"
#include "gpu_worker/collective/collective.h"
#include "gpu_worker/dense_weights.h"
#include "gpu_worker/device.h"
#include "gpu_worker/expert_client/expert_channel.h"
#include "gpu_worker/ffn.h"
#include "gpu_worker/kv_pool.h"
#include "gpu_worker/ops.h"
#include "gpu_worker/step_input.h"
#include "proto/step.pb.h"
#include "worker/expert_bank.h"

namespace kt {

// What a caller may want to see of a step; null functions cost nothing. Pointers are valid during
// the call.
struct ForwardTaps {
  // Residual stream after the embedding (0) and after layer i - 1 (i).
  std::function<void(int index, const void* residual)> hidden;
  // Per MoE layer: [tokens, k] and [tokens, experts].
  std::function<void(int layer, const int32_t* ids, const float* weights, const float* logits)>
      routing;
  // Per layer with an indexer of its own: [tokens, top_k] positions, ascending, then -1.
  AttentionBlock::SelectionTap selection;
};

// Milliseconds and counts of one step, for StepTimings.
struct ForwardTimes {
  double attention_ms = 0, device_moe_ms = 0, expert_wait_ms = 0;
  uint32_t hand_overs = 0;
};

// One thread. Everything is allocated by Create; Run allocates nothing.
class Forward {
 public:
  struct Parts {
    const ModelConfig* config;
    Device* device;
    Ops* ops;
    const DenseWeights* dense;
    const ExpertBank* resident;  // experts on the device, or this rank's rows of them
    const ExpertSets* resident_sets;
    const KvPool* cache;
    int tokens_max;
    bool fp8_index_keys = false;
  };
  static absl::StatusOr<std::unique_ptr<Forward>> Create(const Parts& parts);
  static size_t WorkspaceBytes(const ModelConfig& config, int tokens_max, int activation_bytes);

  // The rows' residual stream after the last layer is in residual() afterwards. `channel` may be
  // null where every expert is resident. `group`: the ranks that share the model, of which rank 0
  // alone has the channel; null: this one has all of it. Errors are those of channel and group; the
  // cache rows of the step are then undefined.
  absl::Status Run(const StepInput& input, ExpertChannel* channel, Collective* group,
                   const ForwardTaps& taps);
  const void* residual() const { return residual_; }
  const ForwardTimes& times() const { return times_; }
  // Expert counts of the last step: [layer][expert], empty for dense layers.
  const std::vector<std::vector<uint32_t>>& expert_counts() const { return counts_; }

 private:
  explicit Forward(const Parts& parts) : p_(parts) {}
  absl::Status Embed(const StepInput& input, Collective* group);
  absl::Status Moe(size_t l, int tokens, ExpertChannel* channel, Collective* group,
                   const ForwardTaps& taps);
  // Adds to the residual what the ranks' parts [tokens, hidden] sum up to.
  absl::Status Close(std::span<const float* const> parts, int tokens, Collective* group);
  absl::StatusOr<bool> SubmitExperts(size_t l, const MoeConfig& moe, int tokens,
                                     ExpertChannel* channel, ExpertTicket* ticket);

  Parts p_;
  AttentionBlock attention_;
  DeviceBuffer memory_;
  // Activations, in the device's type.
  void *residual_ = nullptr, *normed_ = nullptr;
  FfnBuffers ffn_;
  // fp32.
  float *part_ = nullptr, *routed_ = nullptr, *logits_ = nullptr, *weights_ = nullptr,
        *shared_gate_ = nullptr;
  int32_t* ids_ = nullptr;
  std::vector<std::vector<uint8_t>> resident_;  // [layer][expert]: 1 on the device
  std::vector<std::vector<uint32_t>> counts_;
  std::vector<int32_t> host_ids_;
  std::vector<float> host_weights_;
  ForwardTimes times_;
};

}  // namespace kt

#endif  // KT_GPU_WORKER_FORWARD_H_
