// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/prefix_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/status.h"
#include "common/sim/rng.h"

namespace kt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Tokens = std::vector<int32_t>;

// A pool of blocks of four tokens and what a scheduler does with it.
class PrefixCacheTest : public ::testing::Test {
 protected:
  explicit PrefixCacheTest(int slots = 0)
      : blocks_(8, 4), states_(slots), cache_(&blocks_, slots > 0 ? &states_ : nullptr) {}

  CachedPrefix Find(const Tokens& tokens) const {
    return cache_.Find(PrefixCache::kRoot, 0, static_cast<int>(tokens.size()),
                       [&](int position) { return tokens[position]; });
  }
  // Computes all tokens in blocks of its own and keeps them; the table ends with the last block.
  BlockTable Compute(const Tokens& tokens, int32_t slot = 0) {
    BlockTable table;
    std::vector<BlockCopy> copies;
    const int size = static_cast<int>(tokens.size());
    cache_.FreeBlocks(blocks_.BlocksToWrite(table, 0, size));
    blocks_.PrepareWrite(&table, 0, size, &copies);
    for (int i = 0; i * 4 < size; ++i) {
      const bool last = (i + 1) * 4 >= size;
      const int32_t before = i == 0 ? PrefixCache::kRoot : table[i - 1];
      const std::span<const int32_t> part(tokens.data() + i * 4, std::min(4, size - i * 4));
      blocks_.Exchange(&table, i, cache_.Add(before, part, table[i], last ? slot : 0));
    }
    return table;
  }
  void ComputeAndRelease(const Tokens& tokens) {
    BlockTable table = Compute(tokens);
    blocks_.Release(&table);
  }
  void Audit(const std::vector<const BlockTable*>& tables = {}) {
    EXPECT_TRUE(blocks_.Audit(tables).ok()) << blocks_.Audit(tables);
    EXPECT_TRUE(cache_.Audit().ok()) << cache_.Audit();
  }

  BlockPool blocks_;
  StatePool states_;
  PrefixCache cache_;
};

TEST_F(PrefixCacheTest, FindsTheLongestBeginning) {
  BlockTable table = Compute({1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}).tokens, 9);
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6, 7, 8}).tokens, 8);
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6, 0}).tokens, 6) << "a part of a block";
  EXPECT_THAT(Find({1, 2, 3, 4, 5, 6, 0}).blocks, ElementsAre(table[0], table[1]));
  EXPECT_EQ(Find({1, 2}).tokens, 2);
  EXPECT_THAT(Find({2, 2, 3, 4}).blocks, IsEmpty());
  EXPECT_EQ(Find({5, 6, 7, 8}).tokens, 0) << "known only behind other tokens";
  EXPECT_EQ(Find({1, 2, 3, 4}).idle, 0);
  blocks_.Release(&table);
  EXPECT_EQ(Find({1, 2, 3, 4, 5}).idle, 2);
  EXPECT_EQ(blocks_.used_blocks(), 0);
  EXPECT_EQ(blocks_.available_blocks(), 8);
  Audit();
}

TEST_F(PrefixCacheTest, TheSameTokensAreKeptOnce) {
  BlockTable a = Compute({1, 2, 3, 4, 5, 6});
  BlockTable b = Compute({1, 2, 3, 4, 5, 7});
  EXPECT_EQ(a[0], b[0]);
  EXPECT_NE(a[1], b[1]);
  EXPECT_EQ(blocks_.refs(a[0]), 2);
  EXPECT_EQ(blocks_.used_blocks(), 3);
  Audit({&a, &b});
}

TEST_F(PrefixCacheTest, ABlockThatHoldsMoreTakesThePlaceOfItsBeginning) {
  ComputeAndRelease({1, 2});
  ComputeAndRelease({1, 2, 3});
  EXPECT_EQ(blocks_.idle_blocks(), 1);
  ComputeAndRelease({1, 2});
  EXPECT_EQ(blocks_.idle_blocks(), 1);
  EXPECT_EQ(Find({1, 2, 3, 4}).tokens, 3);
  Audit();
}

TEST_F(PrefixCacheTest, TheLongestUnusedLeafGoesFirst) {
  ComputeAndRelease({1, 2, 3, 4, 5, 6, 7, 8});
  ComputeAndRelease({1, 2, 3, 4, 9, 9, 9, 9});
  ComputeAndRelease({1, 2, 3, 4, 5, 6, 7, 8});  // used again
  EXPECT_EQ(blocks_.free_blocks(), 5);
  cache_.FreeBlocks(6);
  EXPECT_EQ(Find({1, 2, 3, 4, 9, 9, 9, 9}).tokens, 4);
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6, 7, 8}).tokens, 8);
  cache_.FreeBlocks(7);
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6, 7, 8}).tokens, 4);
  Audit();
}

TEST_F(PrefixCacheTest, BlocksInUseAreNotDropped) {
  BlockTable held = Compute({1, 2, 3, 4, 5});
  ComputeAndRelease({6, 7});
  cache_.Flush();
  EXPECT_EQ(Find({1, 2, 3, 4, 5}).tokens, 5);
  EXPECT_EQ(Find({6, 7}).tokens, 0);
  EXPECT_EQ(blocks_.available_blocks(), 6);
  Audit({&held});
  blocks_.Release(&held);
  cache_.Flush();
  EXPECT_EQ(blocks_.free_blocks(), 8);
}

TEST_F(PrefixCacheTest, AKeptBlockIsCopiedBeforeItIsWritten) {
  ComputeAndRelease({1, 2});
  BlockTable table;
  blocks_.Share(&table, Find({1, 2, 3}).blocks[0]);
  EXPECT_EQ(blocks_.BlocksToWrite(table, 2, 3), 1);
  std::vector<BlockCopy> copies;
  blocks_.PrepareWrite(&table, 2, 3, &copies);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].target, table[0]);
  EXPECT_EQ(Find({1, 2, 3}).blocks[0], copies[0].source);
  Audit({&table});
}

class PrefixCacheWithStatesTest : public PrefixCacheTest {
 protected:
  PrefixCacheWithStatesTest() : PrefixCacheTest(3) {}

  int32_t SlotOf(const Tokens& tokens) {
    int32_t slot = cache_.ShareState(Find(tokens).blocks.back());
    const int32_t number = slot;
    states_.Release(&slot);
    return number;
  }
};

TEST_F(PrefixCacheWithStatesTest, APrefixEndsWhereAStateIsKept) {
  int32_t slot = states_.Take();
  const int32_t number = slot;
  BlockTable table = Compute({1, 2, 3, 4, 5, 6}, slot);
  states_.Release(&slot);
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6, 7}).tokens, 6);
  EXPECT_EQ(SlotOf({1, 2, 3, 4, 5, 6, 7}), number);
  EXPECT_EQ(Find({1, 2, 3, 4, 5}).tokens, 0) << "a state cannot be cut back";
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 7}).tokens, 0);
  slot = states_.Take();
  EXPECT_TRUE(cache_.AddState(table[0], slot));
  EXPECT_FALSE(cache_.AddState(table[0], slot)) << "it has one";
  states_.Release(&slot);
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 7}).tokens, 4);
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 7}).blocks.size(), 1u);
  EXPECT_EQ(cache_.states_kept(), 2);
  std::vector<int32_t> held;
  cache_.AppendStates(&held);
  EXPECT_TRUE(states_.Audit(held).ok());
  blocks_.Release(&table);
  cache_.FreeBlocks(8);
  EXPECT_EQ(states_.free_slots(), 3) << "states go with their blocks";
  Audit();
}

TEST_F(PrefixCacheWithStatesTest, TheLongestUnusedStateThatNobodyHoldsGoesFirst) {
  std::vector<BlockTable> tables;
  for (int32_t first : {1, 2, 3}) {
    int32_t slot = states_.Take();
    tables.push_back(Compute({first, 9}, slot));
    states_.Release(&slot);
  }
  int32_t held = cache_.ShareState(tables[0][0]);
  cache_.AddState(tables[1][0], held);  // has one: counts as used
  cache_.FreeState();
  EXPECT_EQ(states_.free_slots(), 1);
  EXPECT_EQ(Find({3, 9}).tokens, 0);
  cache_.FreeState();
  EXPECT_EQ(states_.free_slots(), 1) << "one is free already";
  states_.Take();
  cache_.FreeState();
  EXPECT_EQ(Find({2, 9}).tokens, 0);
  EXPECT_EQ(Find({1, 9}).tokens, 2) << "dropping it would free nothing";
  cache_.Flush();
  EXPECT_EQ(cache_.states_kept(), 0);
  EXPECT_EQ(states_.refs(held), 1);
}

// Against a list of what was computed: whatever is found has been computed for these very tokens,
// and is all of what can be known unless blocks had to be dropped.
TEST(PrefixCacheRandomTest, FindsWhatWasComputedAndNothingElse) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const int block_tokens = static_cast<int>(rng.Between(1, 5));
    const bool room = rng.Chance(0.5);
    const bool with_states = rng.Chance(0.5);
    BlockPool blocks(room ? 4000 : static_cast<int>(rng.Between(30, 60)), block_tokens);
    StatePool states(room ? 400 : 6);
    PrefixCache cache(&blocks, with_states ? &states : nullptr);
    std::map<int32_t, Tokens> content;  // of each block, as it would lie in memory
    std::map<int32_t, Tokens> slots;    // all tokens that each slot has seen
    std::vector<Tokens> known;          // all that was computed
    std::vector<BlockTable> held;
    for (int step = 0; step < 200; ++step) {
      Tokens tokens;
      if (!known.empty() && rng.Chance(0.7)) {
        const Tokens& like = known[rng.Between(0, static_cast<int64_t>(known.size()) - 1)];
        const int64_t size = static_cast<int64_t>(like.size());
        tokens.assign(like.begin(), like.begin() + (rng.Chance(0.5) ? size : rng.Between(0, size)));
      }
      const int end = static_cast<int>(tokens.size()) + static_cast<int>(rng.Between(1, 8));
      while (static_cast<int>(tokens.size()) < end)
        tokens.push_back(static_cast<int32_t>(rng.Between(1, 3)));

      const CachedPrefix found =
          cache.Find(PrefixCache::kRoot, 0, end, [&](int position) { return tokens[position]; });
      ASSERT_EQ(found.blocks.size(), size_t(blocks.BlocksFor(found.tokens)));
      for (int p = 0; p < found.tokens; ++p)
        ASSERT_EQ(content[found.blocks[p / block_tokens]].at(p % block_tokens), tokens[p]);
      if (room) {
        int longest = 0;
        for (const Tokens& other : known) {
          const int common = static_cast<int>(
              std::mismatch(other.begin(), other.end(), tokens.begin(), tokens.end()).first -
              other.begin());
          // A state is known only behind all of them.
          if (!with_states || common == static_cast<int>(other.size()))
            longest = std::max(longest, common);
        }
        ASSERT_LE(found.tokens, longest) << "seed " << seed;
        ASSERT_TRUE(with_states || found.tokens == longest) << "seed " << seed;
      }
      int32_t state = 0;
      if (with_states && found.tokens > 0) {
        state = cache.ShareState(found.blocks.back());
        ASSERT_EQ(slots[state], Tokens(tokens.begin(), tokens.begin() + found.tokens));
      }
      // Goes on from there as a scheduler would, where there is room.
      BlockTable table;
      for (int32_t block : found.blocks) blocks.Share(&table, block);
      if (found.tokens < end && blocks.WritableEnd(table, found.tokens, end) == end) {
        std::vector<BlockCopy> copies;
        cache.FreeBlocks(blocks.BlocksToWrite(table, found.tokens, end));
        blocks.PrepareWrite(&table, found.tokens, end, &copies);
        for (const BlockCopy& copy : copies) content[copy.target] = content[copy.source];
        for (int p = found.tokens; p < end; ++p) {
          Tokens& block = content[table[p / block_tokens]];
          block.resize(block_tokens);
          block[p % block_tokens] = tokens[p];
        }
        states.Release(&state);
        if (with_states) {
          cache.FreeState();
          state = states.Take();
          slots[state] = tokens;
        }
        for (int begin = 0; begin < end; begin += block_tokens) {
          const int i = begin / block_tokens;
          const std::span<const int32_t> part(tokens.data() + begin,
                                              std::min(block_tokens, end - begin));
          const int32_t before = i == 0 ? PrefixCache::kRoot : table[i - 1];
          const int32_t kept =
              cache.Add(before, part, table[i], begin + block_tokens >= end ? state : 0);
          if (begin + block_tokens < end || kept == table[i]) blocks.Exchange(&table, i, kept);
        }
        known.push_back(tokens);
      }
      states.Release(&state);
      if (rng.Chance(0.2)) {
        held.push_back(std::move(table));
      } else {
        blocks.Release(&table);
      }
      if (rng.Chance(0.2) || held.size() > 2) {
        for (BlockTable& t : held) blocks.Release(&t);
        held.clear();
      }
      if (!room && rng.Chance(0.02)) cache.Flush();
      std::vector<const BlockTable*> tables;
      for (const BlockTable& t : held) tables.push_back(&t);
      std::vector<int32_t> held_slots;
      cache.AppendStates(&held_slots);
      for (const absl::Status& status :
           {blocks.Audit(tables), cache.Audit(), states.Audit(held_slots)}) {
        ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status;
      }
    }
    for (BlockTable& t : held) blocks.Release(&t);
    cache.Flush();
    EXPECT_EQ(blocks.free_blocks(), blocks.blocks());
    EXPECT_EQ(states.free_slots(), states.slots());
  }
}

}  // namespace
}  // namespace kt
