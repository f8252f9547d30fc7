// SPDX-License-Identifier: Apache-2.0
// Accounting of KV cache blocks: who holds which block. The bytes are the workers'.
#ifndef KT_COORDINATOR_SCHEDULER_BLOCK_POOL_H_
#define KT_COORDINATOR_SCHEDULER_BLOCK_POOL_H_

#include <cstdint>
#include <list>
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

// Invariant: a block's reference count is the number of table entries that name it. Without any it
// is free, or idle: kept for its content (PrefixCache) until the place is needed. A block that is
// kept or has more than one reference is never written (PrepareWrite exchanges it for a copy).
// Every call takes constant time per block but Audit.
class BlockPool {
 public:
  BlockPool(int blocks, int block_tokens);

  int blocks() const { return static_cast<int>(refs_.size()); }
  int block_tokens() const { return block_tokens_; }
  int free_blocks() const { return static_cast<int>(free_.size()); }
  int idle_blocks() const { return static_cast<int>(idle_.size()); }
  int available_blocks() const { return free_blocks() + idle_blocks(); }
  int used_blocks() const { return blocks() - available_blocks(); }
  int refs(int32_t block) const { return refs_[block]; }
  bool kept(int32_t block) const { return kept_[block]; }
  int BlocksFor(int64_t tokens) const;

  // The largest end' <= end for which PrepareWrite(table, begin, end') has blocks enough once idle
  // ones are dropped; begin if there are none.
  int WritableEnd(const BlockTable& table, int begin, int end) const;
  // Free blocks that PrepareWrite takes.
  int BlocksToWrite(const BlockTable& table, int begin, int end) const;
  // Makes positions [begin, end) of `table` exist and be its own. begin < end, BlocksToWrite(...)
  // blocks are free, the table covers begin or ends there.
  void PrepareWrite(BlockTable* table, int begin, int end, std::vector<BlockCopy>* copies);
  // Exchanges a shared block for a free one (there must be one); nullopt: it is not shared.
  std::optional<BlockCopy> MakeWritable(BlockTable* table, int index);
  // A table that shares the blocks of the first `tokens` positions.
  BlockTable Fork(const BlockTable& table, int tokens);
  // Appends a block that is in use or kept.
  void Share(BlockTable* table, int32_t block);
  // Has entry `index` name another block that is in use or kept.
  void Exchange(BlockTable* table, int index, int32_t block);
  // Gives all references back, the last block first; the table is empty afterwards.
  void Release(BlockTable* table);

  void Keep(int32_t block);  // it is in use
  void Drop(int32_t block);  // keeps it no longer
  // The idle block that has been so for longest; there is one. Where the holders of a block always
  // hold another one before it in their tables, that one becomes idle later.
  int32_t longest_idle() const { return idle_.front(); }

  // Internal: the counts do not agree with `tables`, which must be all tables there are, or with
  // the lists of free and idle blocks.
  absl::Status Audit(const std::vector<const BlockTable*>& tables) const;

 private:
  bool NeedsBlock(const BlockTable& table, int index) const;
  int32_t Allocate();
  void Ref(int32_t block);
  void Unref(int32_t block);

  int block_tokens_;
  std::vector<int> refs_;
  std::vector<bool> kept_;
  std::vector<int32_t> free_;                          // used as a stack
  std::list<int32_t> idle_;                            // in the order in which they became so
  std::vector<std::list<int32_t>::iterator> idle_at_;  // by block: where it is in idle_
};

}  // namespace kt

#endif  // KT_COORDINATOR_SCHEDULER_BLOCK_POOL_H_
