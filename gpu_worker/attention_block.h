// SPDX-License-Identifier: Apache-2.0
// The attention part of a layer, of every kind: projections, cache, attention, output projection.
#ifndef KT_GPU_WORKER_ATTENTION_BLOCK_H_
#define KT_GPU_WORKER_ATTENTION_BLOCK_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/collective/collective.h"
#include "gpu_worker/dense_weights.h"
#include "gpu_worker/kv_pool.h"
#include "gpu_worker/step_input.h"

namespace kt {

// Elements of the widest row that the layer's projections round to activations.
int WidestProjection(const ModelConfig& config);

// One thread. Everything is allocated by Create.
class AttentionBlock {
 public:
  struct Parts {
    const ModelConfig* config;
    Device* device;
    Ops* ops;
    const DenseWeights* dense;
    const KvPool* cache;
    int tokens_max;
    bool fp8_index_keys = false;  // Ops::IndexQuantize on the indexers' queries and keys
  };
  // Of one layer that has an indexer of its own: selection [tokens, top_k].
  using SelectionTap = std::function<void(int layer, const int32_t* selection, int top_k)>;

  static absl::StatusOr<AttentionBlock> Create(const Parts& parts);
  static size_t WorkspaceBytes(const ModelConfig& config, int tokens_max, int activation_bytes);

  // Once per step, before its layers: what all layers share.
  void BeginStep(const StepInput& input);
  // out [tokens, hidden] fp32 of x [tokens, hidden] activation, layers in order. `group`: the ranks
  // whose parts add up to the layer's output, which is left to the caller; null: this one alone.
  // Errors are those of the group.
  absl::Status Run(size_t layer, const void* x, const StepInput& input, Collective* group,
                   const SelectionTap& tap, float* out);

 private:
  // Cuts pieces off the workspace; each layer starts again.
  class Carver;
  absl::Status Gqa(const AttentionConfig& a, size_t layer, const void* x, const StepInput& input,
                   Collective* group, Carver& carver, float* out);
  absl::Status FullWidthNorm(const AttentionConfig& a, const AttentionWeights& w, int tokens,
                             Collective* group, Carver& carver, void* q, void* k);
  void Latent(const AttentionConfig& a, size_t layer, const void* x, const StepInput& input,
              const SelectionTap& tap, Carver& carver, float* out);
  void Select(const AttentionConfig& a, const IndexerConfig& ix, size_t layer, const void* x,
              const void* q_latent, const StepInput& input, Carver& carver);
  void DeltaNet(const AttentionConfig& a, size_t layer, const void* x, const StepInput& input,
                Carver& carver, float* out);
  void Rope(std::optional<int> rope, const HeadsView& x, int tokens, int heads);

  Parts p_{};
  DeviceBuffer memory_;
  std::vector<float*> cos_, sin_;  // of each rope: [tokens, rotary_dim / 2]
  int32_t* selection_ = nullptr;   // of the last layer with an indexer of its own
  uint8_t* workspace_ = nullptr;
};

}  // namespace kt

#endif  // KT_GPU_WORKER_ATTENTION_BLOCK_H_
