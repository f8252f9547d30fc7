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
#include "gpu_worker/expert_stream.h"
#include "gpu_worker/ffn.h"
#include "gpu_worker/kv_pool.h"
#include "gpu_worker/ops.h"
#include "gpu_worker/rank_experts.h"
#include "gpu_worker/resident_experts.h"
#include "gpu_worker/step_input.h"
#include "proto/step.pb.h"

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

// Where the routed experts of a step run.
struct StepExperts {
  // Those of CPU workers there; may be null where every expert is resident, and in a layerwise
  // step.
  ExpertChannel* channel = nullptr;
  // All on the device, to which those of CPU workers are copied.
  bool layerwise = false;
  // How hot experts have been, [layer][expert]: residents may change in a layerwise step. Empty:
  // they may not.
  std::vector<std::vector<double>> heat;
};

// Milliseconds and counts of one step, for StepTimings.
struct ForwardTimes {
  double attention_ms = 0, device_moe_ms = 0, expert_wait_ms = 0;
  uint32_t hand_overs = 0;
  // Of experts that tokens were routed to, each once a layer.
  uint64_t resident_bytes = 0, worker_bytes = 0;
};

// One thread. Everything is allocated by Create; Run allocates nothing.
class Forward {
 public:
  struct Parts {
    const ModelConfig* config;
    Device* device;
    Ops* ops;
    const DenseWeights* dense;
    ResidentExperts* residents;
    ExpertStream* stream;  // null: no layerwise steps
    const ExpertBytes* expert_bytes;
    const KvPool* cache;
    int tokens_max;
    bool fp8_index_keys = false;
  };
  static absl::StatusOr<std::unique_ptr<Forward>> Create(const Parts& parts);
  static size_t WorkspaceBytes(const ModelConfig& config, int tokens_max, int activation_bytes);

  // The rows' residual stream after the last layer is in residual() afterwards. `group`: the ranks
  // that share the model, of which rank 0 alone has the channel; null: this one has all of it.
  // Errors are those of channel, group and device; the cache rows of the step are then undefined,
  // and residents may have changed in some layers (ResidentExperts::BeginStep). ResourceExhausted:
  // no rank has begun a layerwise step, for want of device memory.
  absl::Status Run(const StepInput& input, const StepExperts& experts, Collective* group,
                   const ForwardTaps& taps);
  // Right after ExpertStream::Measure: milliseconds that a row takes in all layers' experts on the
  // device.
  double MeasureRow();
  const void* residual() const { return residual_; }
  const ForwardTimes& times() const { return times_; }
  // Expert counts of the last step: [layer][expert], empty for dense layers.
  const std::vector<std::vector<uint32_t>>& expert_counts() const { return counts_; }

 private:
  explicit Forward(const Parts& parts) : p_(parts) {}
  absl::Status BeginLayerwise(Collective* group);
  absl::Status RunLayers(const StepInput& input, const StepExperts& experts, Collective* group,
                         const ForwardTaps& taps);
  absl::Status Embed(const StepInput& input, Collective* group);
  absl::Status Moe(size_t l, int tokens, const StepExperts& experts, Collective* group,
                   const ForwardTaps& taps);
  // Adds to the residual what the ranks' parts [tokens, hidden] sum up to.
  absl::Status Close(std::span<const float* const> parts, int tokens, Collective* group);
  absl::Status CountExperts(size_t l, const MoeConfig& moe, int tokens);
  absl::StatusOr<bool> SubmitExperts(size_t l, const MoeConfig& moe, int tokens,
                                     ExpertChannel* channel, ExpertTicket* ticket);
  absl::Status ChangeResidents(size_t l, const std::vector<double>& heat,
                               std::span<const ExpertPart> copied);

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
  std::vector<std::vector<uint32_t>> counts_;
  std::vector<int32_t> host_ids_;
  std::vector<float> host_weights_;
  ForwardTimes times_;
};

}  // namespace kt

#endif  // KT_GPU_WORKER_FORWARD_H_
