// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention over a paged KV cache: writing keys and values, copying blocks,
// attending.
#ifndef KT_KERNELS_CPU_ATTENTION_ATTENTION_H_
#define KT_KERNELS_CPU_ATTENTION_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/features/cpu_features.h"

namespace kt {

// Keys that lie side by side in the cache; block_tokens is a multiple of it.
constexpr int kKeyGroup = 16;

// The cache of one layer, elements of the activation type:
//   k [blocks, kv_heads, block_tokens / 16, head_dim, 16]
//     16 keys in the lanes of a vector, so that scores need no reduction
//   v [blocks, kv_heads, block_tokens, head_dim rounded up to 16]
//     the padding is written as zero
// A fresh cache needs no initialisation: what has not been written is never used.
struct KvCache {
  void* k = nullptr;
  void* v = nullptr;
  int block_tokens = 0;
  int kv_heads = 0;
  int head_dim = 0;
  bool is_bf16 = false;
};
constexpr int64_t KBlockElements(int kv_heads, int block_tokens, int head_dim) {
  return int64_t{kv_heads} * block_tokens * head_dim;
}
constexpr int64_t VBlockElements(int kv_heads, int block_tokens, int head_dim) {
  return int64_t{kv_heads} * block_tokens * ((head_dim + 15) / 16 * 16);
}

// Stores the keys and values of positions [start_position, start_position + tokens) of one
// sequence.
//
// Shapes   k, v [tokens, kv_heads, head_dim], strides in elements between tokens · block_table[i]:
//          block of positions [i * block_tokens, ...)
// Threads  calls on different tokens may run at once
struct KvWriteArgs {
  KvCache cache;
  const void* k = nullptr;
  int64_t k_stride = 0;
  const void* v = nullptr;
  int64_t v_stride = 0;
  const int32_t* block_table = nullptr;
  int start_position = 0;
  int tokens = 0;
};
void KvWrite(const KvWriteArgs& args) noexcept;

// Copies a whole block of a layer (copy-on-write).
void BlockCopy(const KvCache& cache, int source, int target) noexcept;

// out[i] = softmax(scale * q[i] k^T) v over the keys that query i, at position p = start_position +
// i, sees: 0..p, or max(0, p - window + 1)..p with a window. They must be in the cache already.
//
// Shapes   q, out [tokens, heads, head_dim], strides in elements between tokens; head h reads key
//          head h / (heads / kv_heads) · sinks [heads] or null: logits that join the softmax's
//          maximum and sum and have no value
// Order    keys are taken in tiles of 64 counted from position 0, with a running maximum and sum
//          per query in fp32. A query's bits depend on its own values, its position and the cache
//          only: decode, prefill and every cut into chunks agree.
// Blocks   block_table entries of positions before every query's window are not read
// Threads  tasks of one call are independent (a run of queries and a key head each), the first ones
//          take longest; each running task needs its own scratch of AttentionScratchBytes(),
//          aligned to 64 bytes
struct AttentionArgs {
  const void* q = nullptr;
  int64_t q_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  KvCache cache;
  const int32_t* block_table = nullptr;
  int start_position = 0;
  int tokens = 0;
  int heads = 0;
  float scale = 0;
  const float* sinks = nullptr;
  int window = 0;  // positions a query sees, its own included; 0: all
};
int AttentionTasks(const AttentionArgs& args) noexcept;
size_t AttentionScratchBytes(int heads, int kv_heads, int head_dim) noexcept;
void AttentionTask(Isa isa, const AttentionArgs& args, int task, void* scratch) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_ATTENTION_ATTENTION_H_
