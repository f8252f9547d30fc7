// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention/attention.h"

#include <algorithm>
#include <cstring>

#include "common/base/bf16.h"
#include "kernels/cpu/attention/attention_rows.h"
#include "kernels/cpu/simd/dispatch.h"

namespace kt {
namespace {

// Queries times heads that share the keys in one task: enough to hide the cache reads, small enough
// for their sums to stay in L2.
constexpr int kTaskRows = 32;

int TaskTokens(int heads, int kv_heads) { return std::max(1, kTaskRows / (heads / kv_heads)); }
int PaddedHeadDim(int head_dim) { return (head_dim + 15) / 16 * 16; }

template <typename T>
void KvWriteTyped(const KvWriteArgs& a) {
  const KvCache& cache = a.cache;
  const int head_dim = cache.head_dim, padded = PaddedHeadDim(head_dim);
  for (int i = 0; i < a.tokens; ++i) {
    const int position = a.start_position + i;
    const int64_t block = a.block_table[position / cache.block_tokens];
    const int slot = position % cache.block_tokens;
    for (int h = 0; h < cache.kv_heads; ++h) {
      const T* k = static_cast<const T*>(a.k) + i * a.k_stride + int64_t{h} * head_dim;
      const T* v = static_cast<const T*>(a.v) + i * a.v_stride + int64_t{h} * head_dim;
      const int64_t row = (block * cache.kv_heads + h) * cache.block_tokens;
      T* k_group = static_cast<T*>(cache.k) + (row + slot / kKeyGroup * kKeyGroup) * head_dim +
                   slot % kKeyGroup;
      T* v_row = static_cast<T*>(cache.v) + (row + slot) * padded;
      for (int d = 0; d < head_dim; ++d) k_group[int64_t{d} * kKeyGroup] = k[d];
      std::copy_n(v, head_dim, v_row);
      std::fill(v_row + head_dim, v_row + padded, T{});
    }
  }
}

}  // namespace

void KvWrite(const KvWriteArgs& args) noexcept {
  args.cache.is_bf16 ? KvWriteTyped<bf16>(args) : KvWriteTyped<float>(args);
}

void BlockCopy(const KvCache& cache, int source, int target) noexcept {
  const int64_t element = cache.is_bf16 ? 2 : 4;
  const int64_t k_bytes =
      element * KBlockElements(cache.kv_heads, cache.block_tokens, cache.head_dim);
  const int64_t v_bytes =
      element * VBlockElements(cache.kv_heads, cache.block_tokens, cache.head_dim);
  std::memmove(static_cast<char*>(cache.k) + target * k_bytes,
               static_cast<char*>(cache.k) + source * k_bytes, k_bytes);
  std::memmove(static_cast<char*>(cache.v) + target * v_bytes,
               static_cast<char*>(cache.v) + source * v_bytes, v_bytes);
}

int AttentionTasks(const AttentionArgs& args) noexcept {
  const int task_tokens = TaskTokens(args.heads, args.cache.kv_heads);
  return (args.tokens + task_tokens - 1) / task_tokens * args.cache.kv_heads;
}

size_t AttentionScratchBytes(int heads, int kv_heads, int head_dim) noexcept {
  const size_t rows = size_t(TaskTokens(heads, kv_heads)) * (heads / kv_heads);
  return sizeof(float) * rows * (head_dim + PaddedHeadDim(head_dim) + kKeyTile + 2 + kSumLanes);
}

KT_DEFINE_ISA_DISPATCH(AttentionRows, AttentionRowsArgs)

void AttentionTask(Isa isa, const AttentionArgs& args, int task, void* scratch) noexcept {
  const int task_tokens = TaskTokens(args.heads, args.cache.kv_heads);
  const int runs = AttentionTasks(args) / args.cache.kv_heads;
  const int begin = (runs - 1 - task / args.cache.kv_heads) *
                    task_tokens;  // late queries have most keys: they go first
  AttentionRows(isa, {&args, begin, std::min(begin + task_tokens, args.tokens),
                      task % args.cache.kv_heads, static_cast<float*>(scratch)});
}

}  // namespace kt
