// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/state_pool.h"

#include <gtest/gtest.h>

#include "common/base/status.h"

namespace kt {
namespace {

TEST(StatePoolTest, SlotsAreNumberedFromOneAndComeBackWithTheLastHolder) {
  StatePool pool(2);
  int32_t a = pool.Take();
  EXPECT_EQ(a, 1);
  int32_t b = pool.Share(a);
  int32_t c = pool.Take();
  EXPECT_EQ(c, 2);
  EXPECT_EQ(pool.free_slots(), 0);
  pool.Release(&a);
  EXPECT_EQ(a, 0);
  EXPECT_EQ(pool.free_slots(), 0);
  EXPECT_TRUE(pool.Audit({0, b, c}).ok());
  pool.Release(&b);
  EXPECT_EQ(pool.free_slots(), 1);
  pool.Release(&b);
  EXPECT_EQ(pool.free_slots(), 1) << "no slot, nothing happens";
  pool.Release(&c);
  EXPECT_TRUE(pool.Audit({}).ok());
}

TEST(StatePoolTest, AuditFindsWhatIsNotAccountedFor) {
  StatePool pool(3);
  const int32_t a = pool.Take();
  pool.Share(a);
  EXPECT_TRUE(pool.Audit({a, a}).ok());
  EXPECT_FALSE(pool.Audit({a}).ok()) << "leaked";
  EXPECT_FALSE(pool.Audit({a, a, a}).ok());
  EXPECT_FALSE(pool.Audit({a, a, 2}).ok()) << "held and free";
  EXPECT_FALSE(pool.Audit({a, a, 4}).ok()) << "no such slot";
}

}  // namespace
}  // namespace kt
