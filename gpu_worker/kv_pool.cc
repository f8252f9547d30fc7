// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/kv_pool.h"

#include "common/base/status.h"
#include "kernels/cpu/attention/attention.h"

namespace kt {
namespace {

struct BlockSizes {
  size_t k, v;  // bytes of one block in one layer
};

BlockSizes SizesOf(const AttentionConfig& a, int block_tokens, int activation_bytes) {
  return {static_cast<size_t>(KBlockElements(a.num_kv_heads, block_tokens, a.head_dim) *
                              activation_bytes),
          static_cast<size_t>(VBlockElements(a.num_kv_heads, block_tokens, a.head_dim) *
                              activation_bytes)};
}

}  // namespace

size_t KvPool::BlockBytes(const ModelConfig& config, int block_tokens, int activation_bytes) {
  size_t bytes = 0;
  for (const LayerConfig& layer : config.layers) {
    BlockSizes block = SizesOf(config.attentions[static_cast<size_t>(layer.attention)],
                               block_tokens, activation_bytes);
    bytes += block.k + block.v;
  }
  return bytes;
}

absl::StatusOr<KvPool> KvPool::Allocate(const ModelConfig& config, int blocks, int block_tokens,
                                        int activation_bytes, Device& device) {
  KvPool cache;
  cache.blocks_ = blocks;
  cache.block_tokens_ = block_tokens;
  size_t bytes = BlockBytes(config, block_tokens, activation_bytes) * static_cast<size_t>(blocks);
  auto memory = device.Allocate(bytes, fmt::format("KV cache of {} tokens (--max-total-tokens)",
                                                   int64_t{blocks} * block_tokens));
  if (!memory.ok()) return memory.status();
  cache.memory_ = *std::move(memory);
  uint8_t* next = cache.memory_.As<uint8_t>();
  for (const LayerConfig& layer : config.layers) {
    BlockSizes block = SizesOf(config.attentions[static_cast<size_t>(layer.attention)],
                               block_tokens, activation_bytes);
    size_t k_bytes = block.k * static_cast<size_t>(blocks);
    cache.layers_.push_back({next, next + k_bytes});
    next += k_bytes + block.v * static_cast<size_t>(blocks);
  }
  return cache;
}

}  // namespace kt
