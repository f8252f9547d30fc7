// SPDX-License-Identifier: Apache-2.0
// What a task of attention.h hands to the row of the instruction set.
#ifndef KT_KERNELS_CPU_ATTENTION_ATTENTION_ROWS_H_
#define KT_KERNELS_CPU_ATTENTION_ATTENTION_ROWS_H_

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/key_tile.h"

namespace kt {

// Scratch, in this order: queries [rows, head_dim], sums of values [rows, padded], probabilities
// [rows, kKeyTile], running maximum [rows], factor of the old sums [rows], running sum [rows,
// kSumLanes], all fp32.
struct AttentionRowsArgs {
  const AttentionArgs* attention;
  int token_begin;
  int token_end;
  int kv_head;
  float* scratch;
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_ATTENTION_ATTENTION_ROWS_H_
