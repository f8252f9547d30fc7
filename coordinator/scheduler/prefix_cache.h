// SPDX-License-Identifier: Apache-2.0
// Which cache blocks hold what the model computed for which tokens, so that a prompt that begins
// like one before it starts where that beginning ends.
//
// A tree: the node of a block has the block's tokens, its parent is the block before. Children are
// found by the tokens themselves, so a wrong answer cannot be; no child's tokens are the beginning
// of a sibling's. A leaf may be partly filled. Blocks that nobody holds are idle in the BlockPool
// and are dropped when their place is needed, the longest unused first: holders of a block hold its
// ancestors, and a table is released from its end, so that this is a leaf.
// Models with state slots can go on only where the state is known: nodes may keep the slot that the
// end of their tokens left. These are dropped when a slot is needed, the longest unused first.
#ifndef KT_COORDINATOR_SCHEDULER_PREFIX_CACHE_H_
#define KT_COORDINATOR_SCHEDULER_PREFIX_CACHE_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "coordinator/scheduler/block_pool.h"
#include "coordinator/scheduler/state_pool.h"

namespace kt {

// Positions that need not be computed.
struct CachedPrefix {
  int tokens = 0;     // where they end, from position 0
  BlockTable blocks;  // that cover them, from where the search began; the last may hold more tokens
  int idle = 0;       // of the blocks, how many nobody holds
};

// One thread. A node costs some 250 bytes.
class PrefixCache {
 public:
  static constexpr int32_t kRoot = -1;  // in place of the block before the first

  // Of empty pools, which outlive it. `states` null: a model without state slots.
  PrefixCache(BlockPool* blocks, StatePool* states);

  // The longest known continuation of `before`, which ends at position `begin` and is kept, that
  // does not go beyond `limit`. `token` is asked for tokens of positions below `limit`.
  CachedPrefix Find(int32_t before, int begin, int limit,
                    absl::FunctionRef<int32_t(int)> token) const;

  // `block`, which is in use, has been computed for `tokens` (at most a block of them) that follow
  // `before`, which is kept and full. Returns the block that is kept for them from now on: `block`,
  // or one that was before. `state` is kept with it unless it is 0 or the block holds more tokens.
  int32_t Add(int32_t before, std::span<const int32_t> tokens, int32_t block, int32_t state);

  // Keeps the slot with a kept block. False: the block has a slot already, which counts as used.
  bool AddState(int32_t block, int32_t slot);
  int32_t ShareState(int32_t block);  // another reference to its slot, which it has
  void DropState(int32_t block);      // no effect where there is none; `block` is kept

  // Drops idle blocks until so many are free; there are enough.
  void FreeBlocks(int free);
  // Drops the slot that has been unused for longest until one is free; one can be.
  void FreeState();
  // Drops all but blocks in use, and every slot.
  void Flush();

  int states_kept() const { return static_cast<int>(slots_.size()); }
  void AppendStates(std::vector<int32_t>* held) const;  // for StatePool::Audit
  // Internal: the tree does not agree with itself or with the blocks that are kept.
  absl::Status Audit() const;

 private:
  struct Lexicographic {
    bool operator()(std::span<const int32_t> a, std::span<const int32_t> b) const;
  };
  using Children = std::map<std::span<const int32_t>, int32_t, Lexicographic>;  // blocks
  struct Node {
    int32_t before = kRoot;
    std::vector<int32_t> tokens;
    Children children;  // keys lie in the children's `tokens`
    int32_t slot = 0;
    std::list<int32_t>::iterator slot_at{};  // in slots_, where there is a slot
  };

  const Children& ChildrenOf(int32_t block) const;
  Children& ChildrenOf(int32_t block);
  void Remove(int32_t block);  // a leaf

  BlockPool* blocks_;
  StatePool* states_;
  Children first_;                            // children of kRoot
  std::vector<std::unique_ptr<Node>> nodes_;  // by block; null: not kept
  std::list<int32_t> slots_;                  // blocks with a slot, the longest unused first
};

}  // namespace kt

#endif  // KT_COORDINATOR_SCHEDULER_PREFIX_CACHE_H_
