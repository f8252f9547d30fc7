// SPDX-License-Identifier: Apache-2.0
// Accounting of KV cache blocks: who holds which block. The bytes are the workers'.
#ifndef KT_COORDINATOR_SCHEDULER_BLOCK_POOL_H_
#define KT_COORDINATOR_SCHEDULER_BLOCK_POOL_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace kt {

// Blocks of a sequence: entry i holds positions [i * block_tokens, (i + 1) * block_tokens). Each
// entry is one reference.
using BlockTable = std::vector<int32_t>;

// To be done by the workers before the step that writes the target.
struct BlockCopy {
  int32_t source;
  int32_t target;
};

// Invariant: a block is free, or its reference count is the number of table entries that name it; a
// block with more than one reference is never written (PrepareWrite exchanges it for a copy).
// Allocating and freeing a block take constant time.
class BlockPool {
 public:
  BlockPool(int blocks, int block_tokens);

  int blocks() const { return static_cast<int>(refs_.size()); }
  int block_tokens() const { return block_tokens_; }
  int free_blocks() const { return static_cast<int>(free_.size()); }
  int used_blocks() const { return blocks() - free_blocks(); }
  int refs(int32_t block) const { return refs_[block]; }
  int BlocksFor(int64_t tokens) const;

  // The largest end' <= end for which PrepareWrite(table, begin, end') has blocks enough; begin if
  // there are none.
  int WritableEnd(const BlockTable& table, int begin, int end) const;
  // Makes positions [begin, end) of `table` exist and be its own. begin < end <= WritableEnd(...);
  // the table covers begin or ends there.
  void PrepareWrite(BlockTable* table, int begin, int end, std::vector<BlockCopy>* copies);
  // Exchanges a shared block for a free one (there must be one); nullopt: it is not shared.
  std::optional<BlockCopy> MakeWritable(BlockTable* table, int index);
  // A table that shares the blocks of the first `tokens` positions.
  BlockTable Fork(const BlockTable& table, int tokens);
  // Gives all references back; the table is empty afterwards.
  void Release(BlockTable* table);

  // Internal: the counts do not agree with `tables`, which must be all tables there are, or with
  // the free list.
  absl::Status Audit(const std::vector<const BlockTable*>& tables) const;

 private:
  int32_t Allocate();
  void Unref(int32_t block);

  int block_tokens_;
  std::vector<int> refs_;
  std::vector<int32_t> free_;  // used as a stack
};

}  // namespace kt

#endif  // KT_COORDINATOR_SCHEDULER_BLOCK_POOL_H_
