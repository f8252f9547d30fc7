// SPDX-License-Identifier: Apache-2.0
// Causal attention of one sequence over keys and values in plain arrays: latent attention expanded
// to heads, for prefill.
#ifndef KT_KERNELS_CPU_ATTENTION_PLAIN_ATTENTION_H_
#define KT_KERNELS_CPU_ATTENTION_PLAIN_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/features/cpu_features.h"

namespace kt {

// out[i, h] = softmax(scale * q[i, h] k[.., h]^T) v[.., h] over the keys at positions 0..keys -
// tokens + i: the queries are the sequence's last `tokens` positions.
//
// Shapes   q [tokens, heads, key_dim] · k [keys, heads, key_dim] · v [keys, heads, value_dim] · out
//          [tokens, heads, value_dim], float or bf16; strides in elements between tokens or keys
// Order    as in attention.h: a query's bits depend on its own values, its position and the keys
//          and values only
// Threads  tasks of one call are independent (a run of queries and a head each), the first ones
//          take longest; each running task needs its own scratch of PlainAttentionScratchBytes(),
//          aligned to 64 bytes
struct PlainAttentionArgs {
  const void* q = nullptr;
  int64_t q_stride = 0;
  const void* k = nullptr;
  int64_t k_stride = 0;
  const void* v = nullptr;
  int64_t v_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  int tokens = 0;
  int keys = 0;
  int heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  float scale = 0;
  bool is_bf16 = false;
};
int PlainAttentionTasks(const PlainAttentionArgs& args) noexcept;
size_t PlainAttentionScratchBytes(int key_dim, int value_dim) noexcept;
void PlainAttentionTask(Isa isa, const PlainAttentionArgs& args, int task, void* scratch) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_ATTENTION_PLAIN_ATTENTION_H_
