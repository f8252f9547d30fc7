// SPDX-License-Identifier: Apache-2.0
#include "common/topology/throttle_watch.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/topology/fake_root.h"

namespace kt::topology {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ThrottleWatchTest : public testing::Test {
 protected:
  void Write(int throttled) {
    root_.Write("/cpu.stat", fmt::format("nr_periods 100\nnr_throttled {}\n", throttled));
  }
  FakeRoot root_;
  const ThrottleWatch::Time start_{};
};

TEST_F(ThrottleWatchTest, TellsOfGrowthOnceInAWhile) {
  Write(7);  // before this process
  ThrottleWatch watch(CpuQuota{1.5, "/group/cpu.max", root_.path() + "/cpu.stat"});
  EXPECT_EQ(watch.Sample(start_), "");
  EXPECT_EQ(watch.periods(), 0);

  Write(9);
  EXPECT_THAT(watch.Sample(start_ + seconds(1)),
              AllOf(HasSubstr("quota of 1.50 CPUs (/group/cpu.max)"), HasSubstr("in 2 periods"),
                    HasSubstr("--kt-cpuinfer")));
  EXPECT_EQ(watch.periods(), 2);
  Write(20);
  EXPECT_EQ(watch.Sample(start_ + seconds(2)), "");
  EXPECT_EQ(watch.periods(), 13);
  EXPECT_THAT(watch.Sample(start_ + minutes(6)), HasSubstr("in 11 periods"));
  EXPECT_EQ(watch.Sample(start_ + minutes(60)), "");  // it did not grow
}

TEST_F(ThrottleWatchTest, IsSilentWithoutAQuotaOrWithoutItsFile) {
  ThrottleWatch none(std::nullopt);
  EXPECT_EQ(none.Sample(start_), "");
  Write(3);
  ThrottleWatch gone(CpuQuota{1, "/group/cpu.max", root_.path() + "/cpu.stat"});
  root_.Write("/cpu.stat", "");
  EXPECT_EQ(gone.Sample(start_), "");
  EXPECT_EQ(gone.periods(), 0);
}

}  // namespace
}  // namespace kt::topology
