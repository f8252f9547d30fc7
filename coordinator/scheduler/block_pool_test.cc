// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/block_pool.h"

#include <gtest/gtest.h>

#include "common/base/status.h"
#include "common/sim/rng.h"

namespace kt {
namespace {

TEST(BlockPoolTest, AllocatesWhatPositionsNeed) {
  BlockPool pool(4, 16);
  BlockTable table;
  std::vector<BlockCopy> copies;
  EXPECT_EQ(pool.WritableEnd(table, 0, 17), 17);
  pool.PrepareWrite(&table, 0, 17, &copies);
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(pool.used_blocks(), 2);
  pool.PrepareWrite(&table, 17, 32, &copies);
  EXPECT_EQ(table.size(), 2u);
  EXPECT_TRUE(copies.empty());
  pool.Release(&table);
  EXPECT_EQ(pool.used_blocks(), 0);
  EXPECT_TRUE(table.empty());
}

TEST(BlockPoolTest, WritableEndStopsWhereBlocksEnd) {
  BlockPool pool(2, 16);
  BlockTable table;
  std::vector<BlockCopy> copies;
  EXPECT_EQ(pool.WritableEnd(table, 0, 100), 32);
  pool.PrepareWrite(&table, 0, 20, &copies);
  EXPECT_EQ(pool.WritableEnd(table, 20, 100), 32);
  EXPECT_EQ(pool.WritableEnd(table, 32, 33), 32);
}

TEST(BlockPoolTest, ForkSharesAndWritingCopiesOnce) {
  BlockPool pool(4, 16);
  BlockTable a;
  std::vector<BlockCopy> copies;
  pool.PrepareWrite(&a, 0, 20, &copies);
  BlockTable b = pool.Fork(a, 20);
  EXPECT_EQ(a, b);
  EXPECT_EQ(pool.used_blocks(), 2);
  EXPECT_EQ(pool.refs(a[1]), 2);

  pool.PrepareWrite(&b, 20, 21, &copies);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].source, a[1]);
  EXPECT_EQ(copies[0].target, b[1]);
  EXPECT_EQ(a[0], b[0]);
  pool.PrepareWrite(&a, 20, 21, &copies);
  EXPECT_EQ(copies.size(), 1u) << "the last holder writes in place";
  EXPECT_TRUE(pool.Audit({&a, &b}).ok());
}

TEST(BlockPoolTest, CopyNeedsAFreeBlock) {
  BlockPool pool(1, 16);
  BlockTable a;
  std::vector<BlockCopy> copies;
  pool.PrepareWrite(&a, 0, 8, &copies);
  BlockTable b = pool.Fork(a, 7);
  EXPECT_EQ(pool.WritableEnd(b, 7, 8), 7);
  pool.Release(&a);
  EXPECT_EQ(pool.WritableEnd(b, 7, 8), 8);
  EXPECT_EQ(pool.MakeWritable(&b, 0), std::nullopt);
}

TEST(BlockPoolTest, ForkOfWholeBlocksSharesNoPartialOne) {
  BlockPool pool(4, 4);
  BlockTable a;
  std::vector<BlockCopy> copies;
  pool.PrepareWrite(&a, 0, 8, &copies);
  EXPECT_EQ(pool.Fork(a, 4).size(), 1u);
  EXPECT_EQ(pool.Fork(a, 0).size(), 0u);
}

TEST(BlockPoolTest, AuditFindsALeakAndAForeignTable) {
  BlockPool pool(4, 16);
  BlockTable a;
  std::vector<BlockCopy> copies;
  pool.PrepareWrite(&a, 0, 20, &copies);
  EXPECT_TRUE(pool.Audit({&a}).ok());
  EXPECT_FALSE(pool.Audit({}).ok());
  const BlockTable foreign = {a[0]};
  EXPECT_FALSE(pool.Audit({&a, &foreign}).ok());
  const BlockTable out_of_range = {7};
  EXPECT_FALSE(pool.Audit({&a, &out_of_range}).ok());
}

TEST(BlockPoolTest, RandomUseKeepsTheInvariants) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    BlockPool pool(static_cast<int>(rng.Between(1, 20)), static_cast<int>(rng.Between(1, 5)));
    std::vector<std::pair<BlockTable, int>> tables(6);  // with the positions that are written
    for (int step = 0; step < 300; ++step) {
      auto& [table, tokens] = tables[rng.Between(0, 5)];
      std::vector<BlockCopy> copies;
      if (rng.Chance(0.6)) {
        const int end =
            pool.WritableEnd(table, tokens, tokens + static_cast<int>(rng.Between(1, 8)));
        if (end > tokens) pool.PrepareWrite(&table, tokens, end, &copies);
        for (int p = tokens; p < end; ++p) ASSERT_EQ(pool.refs(table[p / pool.block_tokens()]), 1);
        tokens = end;
      } else if (rng.Chance(0.5)) {
        pool.Release(&table);
        tokens = 0;
      } else {
        auto& [target, target_tokens] = tables[rng.Between(0, 5)];
        if (&target == &table) continue;
        pool.Release(&target);
        target_tokens = static_cast<int>(rng.Between(0, tokens));
        target = pool.Fork(table, target_tokens);
      }
      std::vector<const BlockTable*> all;
      for (const auto& entry : tables) all.push_back(&entry.first);
      ASSERT_TRUE(pool.Audit(all).ok()) << "seed " << seed << ": " << Message(pool.Audit(all));
    }
    for (auto& entry : tables) pool.Release(&entry.first);
    EXPECT_EQ(pool.used_blocks(), 0);
  }
}

}  // namespace
}  // namespace kt
