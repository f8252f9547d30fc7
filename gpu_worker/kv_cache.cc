// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/kv_cache.h"

#include "common/base/status.h"

namespace kt {
namespace {

// Keys of one block in one layer; values take the same.
size_t HalfBlockBytes(const AttentionConfig& a, int block_tokens, int activation_bytes) {
  return static_cast<size_t>(a.num_kv_heads) * static_cast<size_t>(a.head_dim) * static_cast<size_t>(block_tokens * activation_bytes);
}

}  // namespace

size_t KvCache::BlockBytes(const ModelConfig& config, int block_tokens, int activation_bytes) {
  size_t bytes = 0;
  for (const LayerConfig& layer : config.layers) {
    bytes += 2 * HalfBlockBytes(config.attentions[static_cast<size_t>(layer.attention)], block_tokens, activation_bytes);
  }
  return bytes;
}

absl::StatusOr<KvCache> KvCache::Allocate(const ModelConfig& config, int blocks, int block_tokens, int activation_bytes, Device& device) {
  KvCache cache;
  cache.blocks_ = blocks;
  cache.block_tokens_ = block_tokens;
  size_t bytes = BlockBytes(config, block_tokens, activation_bytes) * static_cast<size_t>(blocks);
  auto memory = device.Allocate(bytes, fmt::format("KV cache of {} tokens (--max-total-tokens)", int64_t{blocks} * block_tokens));
  if (!memory.ok()) return memory.status();
  cache.memory_ = *std::move(memory);
  uint8_t* next = cache.memory_.As<uint8_t>();
  for (const LayerConfig& layer : config.layers) {
    size_t half = HalfBlockBytes(config.attentions[static_cast<size_t>(layer.attention)], block_tokens, activation_bytes) *
                  static_cast<size_t>(blocks);
    cache.layers_.push_back({next, next + half});
    next += 2 * half;
  }
  return cache;
}

}  // namespace kt
