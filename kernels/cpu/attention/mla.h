// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention in its absorbed form over a paged cache: writing rows, copying
// blocks, attending. One row per position serves all heads, as key and as value.
#ifndef KT_KERNELS_CPU_ATTENTION_MLA_H_
#define KT_KERNELS_CPU_ATTENTION_MLA_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/features/cpu_features.h"

namespace kt {

// The cache of one layer, elements of the activation type:
//   rows [blocks, block_tokens, kv_lora + rope rounded up to 16]   a row is [c | roped key | zeros]
// The keys of an indexer live in a cache of the same form: kv_lora is their head_dim, rope 0.
// A fresh cache needs no initialisation: what has not been written is never used.
struct MlaCache {
  void* rows = nullptr;
  int block_tokens = 0;
  int kv_lora = 0;
  int rope = 0;
  bool is_bf16 = false;
};
constexpr int64_t MlaRowElements(int kv_lora, int rope) { return (kv_lora + rope + 15) / 16 * 16; }
constexpr int64_t MlaBlockElements(int block_tokens, int kv_lora, int rope) {
  return block_tokens * MlaRowElements(kv_lora, rope);
}

// Stores the rows of positions [start_position, start_position + tokens) of one sequence.
//
// Shapes   c [tokens, kv_lora], k_rope [tokens, rope] (unused if rope is 0), strides in elements
//          between tokens · block_table[i]: block of positions [i * block_tokens, ...)
// Threads  calls on different tokens may run at once
struct MlaWriteArgs {
  MlaCache cache;
  const void* c = nullptr;
  int64_t c_stride = 0;
  const void* k_rope = nullptr;
  int64_t k_rope_stride = 0;
  const int32_t* block_table = nullptr;
  int start_position = 0;
  int tokens = 0;
};
void MlaWrite(const MlaWriteArgs& args) noexcept;

// Copies a whole block of a layer (copy-on-write).
void BlockCopy(const MlaCache& cache, int source, int target) noexcept;

// out[i, h] = softmax(scale * q[i, h] row^T) c over the rows at positions 0..start_position + i, or
// over the selected ones, which must be in the cache already.
//
// Shapes   q [tokens, heads, kv_lora + rope] (absorbed query, then its roped part), out [tokens,
//          heads, kv_lora], both of the cache's element type; strides in elements between tokens
//          and between heads, so that the heads may also lie outermost
//          selection [tokens, top_k] or null: ascending positions, then -1 (indexer.h); at least
//          one position each
// Order    the positions a query sees are taken in tiles of 64 counted from the first, with a
//          running maximum and sum in fp32. A query's bits depend on its own values, the list of
//          its positions and the cache only: decode, prefill, every cut into chunks, and a
//          selection of all positions agree.
// Threads  tasks of one call are independent (a token and up to 8 heads each), the first ones take
//          longest; each running task needs its own scratch of MlaScratchBytes(), aligned to 64
//          bytes
struct MlaArgs {
  const void* q = nullptr;
  int64_t q_stride = 0;
  int64_t q_head_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  int64_t out_head_stride = 0;
  MlaCache cache;
  const int32_t* block_table = nullptr;
  int start_position = 0;
  int tokens = 0;
  int heads = 0;
  float scale = 0;
  const int32_t* selection = nullptr;
  int top_k = 0;
};
int MlaTasks(const MlaArgs& args) noexcept;
size_t MlaScratchBytes(int kv_lora, int rope) noexcept;
void MlaTask(Isa isa, const MlaArgs& args, int task, void* scratch) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_ATTENTION_MLA_H_
