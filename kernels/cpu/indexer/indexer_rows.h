// SPDX-License-Identifier: Apache-2.0
// What a score task of indexer.h hands to the row of the instruction set.
#ifndef KT_KERNELS_CPU_INDEXER_INDEXER_ROWS_H_
#define KT_KERNELS_CPU_INDEXER_INDEXER_ROWS_H_

#include "kernels/cpu/indexer/indexer.h"

namespace kt {

// Scratch: queries [heads, row_elements] fp32.
struct IndexerScoreArgs {
  const IndexerArgs* indexer;
  int token;
  int position_begin;
  int position_end;
  int row_elements;
  float* scratch;
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_INDEXER_INDEXER_ROWS_H_
