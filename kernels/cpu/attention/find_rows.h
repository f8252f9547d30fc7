// SPDX-License-Identifier: Apache-2.0
#ifndef KT_KERNELS_CPU_ATTENTION_FIND_ROWS_H_
#define KT_KERNELS_CPU_ATTENTION_FIND_ROWS_H_

#include "kernels/cpu/attention/mla.h"
#include "kernels/cpu/attention/row_dots.h"

namespace kt::KT_ISA_NAMESPACE {
namespace {

// Where entries [first, first + count) of a list of positions (null: 0, 1, ...) lie in the cache, 0
// < count <= kKeyTile. The rest up to a multiple of kDotKeys repeats the last.
template <typename T>
void FindRows(const MlaCache& cache, int row_elements, const int32_t* block_table,
              const int32_t* positions, int first, int count, const T** rows) {
  for (int i = 0; i < count; ++i) {
    const int position = positions == nullptr ? first + i : positions[first + i];
    const int64_t block = block_table[position / cache.block_tokens];
    rows[i] = static_cast<const T*>(cache.rows) +
              (block * cache.block_tokens + position % cache.block_tokens) * row_elements;
  }
  for (int i = count; i % kDotKeys != 0; ++i) rows[i] = rows[count - 1];
}

}  // namespace
}  // namespace kt::KT_ISA_NAMESPACE

#endif  // KT_KERNELS_CPU_ATTENTION_FIND_ROWS_H_
