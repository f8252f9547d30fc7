// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/block_pool.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/status.h"

namespace kt {

BlockPool::BlockPool(int blocks, int block_tokens)
    : block_tokens_(block_tokens),
      refs_(blocks, 0),
      kept_(blocks, false),
      free_(blocks),
      idle_at_(blocks) {
  std::iota(free_.rbegin(), free_.rend(), 0);  // block 0 is handed out first
}

int BlockPool::BlocksFor(int64_t tokens) const {
  return static_cast<int>((tokens + block_tokens_ - 1) / block_tokens_);
}

bool BlockPool::NeedsBlock(const BlockTable& table, int index) const {
  return index >= static_cast<int>(table.size()) || refs_[table[index]] > 1 || kept_[table[index]];
}

int BlockPool::WritableEnd(const BlockTable& table, int begin, int end) const {
  int available = available_blocks();
  for (int index = begin / block_tokens_; index * block_tokens_ < end; ++index) {
    if (NeedsBlock(table, index) && available-- == 0) return std::max(begin, index * block_tokens_);
  }
  return end;
}

int BlockPool::BlocksToWrite(const BlockTable& table, int begin, int end) const {
  int blocks = 0;
  for (int index = begin / block_tokens_; index * block_tokens_ < end; ++index)
    blocks += NeedsBlock(table, index);
  return blocks;
}

void BlockPool::PrepareWrite(BlockTable* table, int begin, int end,
                             std::vector<BlockCopy>* copies) {
  for (int index = begin / block_tokens_; index * block_tokens_ < end; ++index) {
    if (index == static_cast<int>(table->size())) {
      table->push_back(Allocate());
    } else if (auto copy = MakeWritable(table, index)) {
      copies->push_back(*copy);
    }
  }
}

std::optional<BlockCopy> BlockPool::MakeWritable(BlockTable* table, int index) {
  int32_t& block = (*table)[index];
  if (!NeedsBlock(*table, index)) return std::nullopt;
  const BlockCopy copy{block, Allocate()};
  Unref(copy.source);
  block = copy.target;
  return copy;
}

BlockTable BlockPool::Fork(const BlockTable& table, int tokens) {
  BlockTable fork(table.begin(), table.begin() + BlocksFor(tokens));
  for (int32_t block : fork) Ref(block);
  return fork;
}

void BlockPool::Share(BlockTable* table, int32_t block) {
  Ref(block);
  table->push_back(block);
}

void BlockPool::Exchange(BlockTable* table, int index, int32_t block) {
  Ref(block);
  Unref(std::exchange((*table)[index], block));
}

void BlockPool::Release(BlockTable* table) {
  for (auto block = table->rbegin(); block != table->rend(); ++block) Unref(*block);
  table->clear();
}

void BlockPool::Keep(int32_t block) { kept_[block] = true; }

void BlockPool::Drop(int32_t block) {
  kept_[block] = false;
  if (refs_[block] > 0) return;
  idle_.erase(idle_at_[block]);
  free_.push_back(block);
}

int32_t BlockPool::Allocate() {
  const int32_t block = free_.back();
  free_.pop_back();
  refs_[block] = 1;
  return block;
}

void BlockPool::Ref(int32_t block) {
  if (refs_[block]++ == 0) idle_.erase(idle_at_[block]);
}

void BlockPool::Unref(int32_t block) {
  if (--refs_[block] > 0) return;
  if (kept_[block]) {
    idle_at_[block] = idle_.insert(idle_.end(), block);
  } else {
    free_.push_back(block);
  }
}

absl::Status BlockPool::Audit(const std::vector<const BlockTable*>& tables) const {
  std::vector<int> counted(refs_.size(), 0);
  for (const BlockTable* table : tables) {
    for (int32_t block : *table) {
      if (block < 0 || block >= blocks())
        return Internal("block pool: a table names block {} of {}", block, blocks());
      ++counted[block];
    }
  }
  std::vector<int> times_free(refs_.size(), 0), times_idle(refs_.size(), 0);
  for (int32_t block : free_) ++times_free[block];
  for (int32_t block : idle_) ++times_idle[block];
  for (int block = 0; block < blocks(); ++block) {
    const bool unused = refs_[block] == 0;
    if (refs_[block] != counted[block] || times_free[block] != (unused && !kept_[block]) ||
        times_idle[block] != (unused && kept_[block])) {
      return Internal(
          "block pool: block {} has count {}, {} table entries, is {}kept, {} times free and {} "
          "times idle",
          block, refs_[block], counted[block], kept_[block] ? "" : "not ", times_free[block],
          times_idle[block]);
    }
  }
  return absl::OkStatus();
}

}  // namespace kt
