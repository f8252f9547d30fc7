// SPDX-License-Identifier: Apache-2.0
// What a task of mla.h hands to the row of the instruction set.
#ifndef KT_KERNELS_CPU_ATTENTION_MLA_ROWS_H_
#define KT_KERNELS_CPU_ATTENTION_MLA_ROWS_H_

#include "kernels/cpu/attention/key_tile.h"
#include "kernels/cpu/attention/mla.h"

namespace kt {

constexpr int kMlaTaskHeads = 8;

// Scratch, in this order, heads = kMlaTaskHeads: queries [heads, row_elements], sums of values
// [heads, kv_lora rounded up to 16], probabilities [heads, kKeyTile], running maximum [heads],
// factor of the old sums [heads], running sum [heads, kSumLanes], all fp32.
struct MlaRowsArgs {
  const MlaArgs* mla;
  int token;
  int head_begin;
  int head_end;
  const int32_t* positions;  // [num_positions] what the query sees; null: 0, 1, ...
  int num_positions;
  int row_elements;
  float* scratch;
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_ATTENTION_MLA_ROWS_H_
