// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/kv_pool.h"

#include "common/base/status.h"
#include "gpu_worker/host_attention.h"

namespace kt {
namespace {

struct LayerBytes {
  size_t k = 0, v = 0, latent = 0, index = 0;  // of one block
  size_t state = 0;                            // of one slot
  size_t block() const { return k + v + latent + index; }
};

LayerBytes BytesOf(const ModelConfig& config, const LayerConfig& layer, int block_tokens,
                   int activation_bytes) {
  const AttentionConfig& a = config.attentions[static_cast<size_t>(layer.attention)];
  auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements * activation_bytes); };
  LayerBytes out;
  switch (a.kind) {
    case AttentionKind::kGqa:
      out.k = bytes(KBlockElements(a.num_kv_heads, block_tokens, a.head_dim));
      out.v = bytes(VBlockElements(a.num_kv_heads, block_tokens, a.head_dim));
      break;
    case AttentionKind::kMla:
      out.latent = bytes(MlaBlockElements(block_tokens, a.kv_lora_rank, a.rope_dim));
      if (a.indexer && !layer.shares_selection) {
        int head_dim = config.indexers[static_cast<size_t>(*a.indexer)].head_dim;
        out.index = bytes(MlaBlockElements(block_tokens, head_dim, 0));
      }
      break;
    case AttentionKind::kDeltaNet:
      out.state = (DeltaNetStateBytes(DeltaNetShapeOf(a)) + 255) / 256 * 256;
      break;
  }
  return out;
}

}  // namespace

size_t KvPool::BlockBytes(const ModelConfig& config, const KvPoolShape& shape) {
  size_t bytes = 0;
  for (const LayerConfig& layer : config.layers)
    bytes += BytesOf(config, layer, shape.block_tokens, shape.activation_bytes).block();
  return bytes;
}

size_t KvPool::SlotBytes(const ModelConfig& config) {
  size_t bytes = 0;
  for (const LayerConfig& layer : config.layers) bytes += BytesOf(config, layer, 0, 0).state;
  return bytes;
}

absl::StatusOr<KvPool> KvPool::Allocate(const ModelConfig& config, const KvPoolShape& shape,
                                        Device& device) {
  KvPool pool;
  pool.shape_ = shape;
  const auto blocks = static_cast<size_t>(shape.blocks);
  const auto slots = static_cast<size_t>(shape.state_slots);
  std::string what = fmt::format("KV cache of {} tokens (--max-total-tokens)",
                                 int64_t{shape.blocks} * shape.block_tokens);
  if (slots > 0) {
    what += fmt::format(" and {} state slots of {} bytes (--max-running-requests)", slots,
                        SlotBytes(config));
  }
  // Every part starts on 256 bytes.
  auto aligned = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  size_t total = 0;
  for (const LayerConfig& layer : config.layers) {
    LayerBytes b = BytesOf(config, layer, shape.block_tokens, shape.activation_bytes);
    for (size_t bytes :
         {b.k * blocks, b.v * blocks, b.latent * blocks, b.index * blocks, b.state * slots})
      total += aligned(bytes);
  }
  KT_ASSIGN_OR_RETURN(pool.memory_, device.Allocate(total, what));
  uint8_t* next = pool.memory_.As<uint8_t>();
  auto take = [&](size_t bytes) -> uint8_t* {
    if (bytes == 0) return nullptr;
    uint8_t* p = next;
    next += aligned(bytes);
    return p;
  };
  for (const LayerConfig& layer : config.layers) {
    LayerBytes b = BytesOf(config, layer, shape.block_tokens, shape.activation_bytes);
    pool.layers_.push_back({.k = take(b.k * blocks),
                            .v = take(b.v * blocks),
                            .latent = take(b.latent * blocks),
                            .index = take(b.index * blocks),
                            .states = take(b.state * slots),
                            .state_bytes = b.state});
  }
  return pool;
}

}  // namespace kt
