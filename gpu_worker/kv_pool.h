// SPDX-License-Identifier: Apache-2.0
// The bytes behind the coordinator's KV blocks and state slots: for each layer what its kind of
// attention keeps of every block (keys and values, latent rows, index keys) or of every sequence.
// Accounting is the coordinator's.
#ifndef KT_GPU_WORKER_KV_POOL_H_
#define KT_GPU_WORKER_KV_POOL_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "gpu_worker/device.h"
#include "gpu_worker/ops.h"

namespace kt {

struct KvPoolShape {
  int blocks = 0;
  int block_tokens = 0;
  int state_slots = 0;  // 0: the model has no layer with a state
  int activation_bytes = 0;
};

class KvPool {
 public:
  static size_t BlockBytes(const ModelConfig& config,
                           const KvPoolShape& shape);  // of one block in all layers
  static size_t SlotBytes(const ModelConfig& config);  // of one state slot in all layers
  static absl::StatusOr<KvPool> Allocate(const ModelConfig& config, const KvPoolShape& shape,
                                         Device& device);

  const LayerCache& layer(size_t l) const { return layers_[l]; }
  const KvPoolShape& shape() const { return shape_; }
  size_t bytes() const { return memory_.bytes(); }

 private:
  DeviceBuffer memory_;
  std::vector<LayerCache> layers_;
  KvPoolShape shape_;
};

}  // namespace kt

#endif  // KT_GPU_WORKER_KV_POOL_H_
