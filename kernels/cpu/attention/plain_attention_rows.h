// SPDX-License-Identifier: Apache-2.0
// What a task of plain_attention.h hands to the row of the instruction set.
#ifndef KT_KERNELS_CPU_ATTENTION_PLAIN_ATTENTION_ROWS_H_
#define KT_KERNELS_CPU_ATTENTION_PLAIN_ATTENTION_ROWS_H_

#include "kernels/cpu/attention/key_tile.h"
#include "kernels/cpu/attention/plain_attention.h"

namespace kt {

// Queries of a task: each widened tile of keys and values serves all of them.
constexpr int kPlainTaskTokens = 64;

// Scratch, in this order, dims rounded up to 16: keys [kKeyTile, key_dim], values [kKeyTile,
// value_dim], queries [tokens, key_dim], sums of values [tokens, value_dim], probabilities [tokens,
// kKeyTile], running maximum [tokens], factor of the old sums [tokens], running sum [tokens,
// kSumLanes], all fp32, tokens = kPlainTaskTokens.
struct PlainAttentionRowsArgs {
  const PlainAttentionArgs* attention;
  int token_begin;
  int token_end;
  int head;
  float* scratch;
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_ATTENTION_PLAIN_ATTENTION_ROWS_H_
