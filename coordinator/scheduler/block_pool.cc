// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/block_pool.h"

#include <algorithm>
#include <numeric>

#include "common/base/status.h"

namespace kt {

BlockPool::BlockPool(int blocks, int block_tokens)
    : block_tokens_(block_tokens), refs_(blocks, 0), free_(blocks) {
  std::iota(free_.rbegin(), free_.rend(), 0);  // block 0 is handed out first
}

int BlockPool::BlocksFor(int64_t tokens) const {
  return static_cast<int>((tokens + block_tokens_ - 1) / block_tokens_);
}

int BlockPool::WritableEnd(const BlockTable& table, int begin, int end) const {
  int available = free_blocks();
  for (int index = begin / block_tokens_; index * block_tokens_ < end; ++index) {
    const bool needs_block = index >= static_cast<int>(table.size()) || refs_[table[index]] > 1;
    if (needs_block && available-- == 0) return std::max(begin, index * block_tokens_);
  }
  return end;
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
  if (refs_[block] == 1) return std::nullopt;
  const BlockCopy copy{block, Allocate()};
  Unref(copy.source);
  block = copy.target;
  return copy;
}

BlockTable BlockPool::Fork(const BlockTable& table, int tokens) {
  BlockTable fork(table.begin(), table.begin() + BlocksFor(tokens));
  for (int32_t block : fork) ++refs_[block];
  return fork;
}

void BlockPool::Release(BlockTable* table) {
  for (int32_t block : *table) Unref(block);
  table->clear();
}

int32_t BlockPool::Allocate() {
  const int32_t block = free_.back();
  free_.pop_back();
  refs_[block] = 1;
  return block;
}

void BlockPool::Unref(int32_t block) {
  if (--refs_[block] == 0) free_.push_back(block);
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
  std::vector<bool> is_free(refs_.size(), false);
  for (int32_t block : free_) {
    if (is_free[block]) return Internal("block pool: block {} is free twice", block);
    is_free[block] = true;
  }
  for (int block = 0; block < blocks(); ++block) {
    if (refs_[block] != counted[block] || is_free[block] != (refs_[block] == 0)) {
      return Internal("block pool: block {} has count {}, {} table entries and is {}", block,
                      refs_[block], counted[block], is_free[block] ? "free" : "not free");
    }
  }
  return absl::OkStatus();
}

}  // namespace kt
