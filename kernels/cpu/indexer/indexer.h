// SPDX-License-Identifier: Apache-2.0
// The sparse indexer of an MLA layer: which positions a query attends to. Its keys, one per
// position, lie in an MlaCache with kv_lora = head_dim and rope = 0 (written by MlaWrite).
#ifndef KT_KERNELS_CPU_INDEXER_INDEXER_H_
#define KT_KERNELS_CPU_INDEXER_INDEXER_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/mla.h"
#include "kernels/cpu/features/cpu_features.h"

namespace kt {

// For the query of token i, at position t = start_position + i:
//   scores[i, s] = sum over heads h, ascending, of w[i, h] relu(q[i, h] . key[s])   for s <= t
//   selection[i] = the min(top_k, t + 1) positions s <= t of highest score in ascending order, then
//                  -1; of equal scores the lower position wins, NaN counts lowest
// in two steps: all score tasks of a call, then IndexerSelect of each token. The scores of a token
// that sees no more than top_k positions decide nothing and are not computed.
//
// Shapes   q [tokens, heads, head_dim] of the cache's element type, head_dim = cache.kv_lora · w
//          [tokens, heads] fp32, scaled · scores [tokens, scores_stride] fp32, scores_stride >=
//          start_position + tokens; the caller bounds it by the number of tokens per call ·
//          selection [tokens, top_k]
// Units    q_stride, w_stride, scores_stride in elements between tokens; the heads of a token are
//          adjacent
// Order    a score's bits depend on its query and key only, so every cut into chunks selects the
//          same
// Threads  score tasks are independent of each other (a token and 1024 positions each), so are the
//          tokens of IndexerSelect; each running score task needs its own scratch of
//          IndexerScratchBytes(), aligned to 64 bytes
struct IndexerArgs {
  const void* q = nullptr;
  int64_t q_stride = 0;
  const float* w = nullptr;
  int64_t w_stride = 0;
  MlaCache cache;
  const int32_t* block_table = nullptr;
  int start_position = 0;
  int tokens = 0;
  int heads = 0;
  int top_k = 0;
  float* scores = nullptr;
  int64_t scores_stride = 0;
  int32_t* selection = nullptr;
};
int IndexerScoreTasks(const IndexerArgs& args) noexcept;
size_t IndexerScratchBytes(int heads, int head_dim) noexcept;
void IndexerScoreTask(Isa isa, const IndexerArgs& args, int task, void* scratch) noexcept;
void IndexerSelect(const IndexerArgs& args, int token) noexcept;

// Rounds vectors of n in place to what an FP8 index cache holds: x = scale * E4M3(x / scale) with
// scale = 2^ceil(log2(max |x| / 448)). With `hadamard` x becomes n^-1/2 H x first (Sylvester's
// order, in fp32, rounded to the activation type); n is then a power of two up to kHadamardMax.
//
// Shapes   x [rows, n] float or bf16, stride in elements between rows
// Threads  reentrant; a vector's bits depend on its own values only
// Errors   none; a vector with a value that is not finite is not rounded
constexpr int kHadamardMax = 1024;
struct IndexerQuantizeArgs {
  void* x = nullptr;
  int64_t stride = 0;
  int rows = 0;
  int n = 0;
  bool hadamard = false;
  bool is_bf16 = false;
};
void IndexerQuantize(Isa isa, const IndexerQuantizeArgs& args) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_INDEXER_INDEXER_H_
