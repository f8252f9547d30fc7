// SPDX-License-Identifier: Apache-2.0
// The bytes behind the coordinator's KV blocks: for each layer, keys and values of every block.
// Accounting is the coordinator's.
#ifndef KT_GPU_WORKER_KV_POOL_H_
#define KT_GPU_WORKER_KV_POOL_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "gpu_worker/device.h"
#include "gpu_worker/ops.h"

namespace kt {

class KvPool {
 public:
  static size_t BlockBytes(const ModelConfig& config, int block_tokens,
                           int activation_bytes);  // of one block in all layers
  static absl::StatusOr<KvPool> Allocate(const ModelConfig& config, int blocks, int block_tokens,
                                         int activation_bytes, Device& device);

  const KvLayer& layer(size_t l) const { return layers_[l]; }
  int blocks() const { return blocks_; }
  int block_tokens() const { return block_tokens_; }
  size_t bytes() const { return memory_.bytes(); }

 private:
  DeviceBuffer memory_;
  std::vector<KvLayer> layers_;
  int blocks_ = 0;
  int block_tokens_ = 0;
};

}  // namespace kt

#endif  // KT_GPU_WORKER_KV_POOL_H_
