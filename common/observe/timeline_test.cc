// SPDX-License-Identifier: Apache-2.0
#include "common/observe/timeline.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

namespace kt::timeline {
namespace {

TEST(TimelineTest, RecordsWhatBeginsAndEndsWhileItRuns) {
  { Span before("before"); }
  auto across = std::make_unique<Span>("across");
  ASSERT_TRUE(Start());
  EXPECT_FALSE(Start()) << "one at a time";
  across.reset();
  {
    Span outer("outer", "layer", 3);
    Span inner("inner");
  }
  std::thread([] { Span other("other"); }).join();
  Recording recording = Stop();
  { Span after("after"); }
  ASSERT_EQ(recording.events.size(), 3u);
  EXPECT_EQ(recording.events[0].name, std::string("inner"));
  const Event& outer = recording.events[1];
  EXPECT_EQ(outer.name, std::string("outer"));
  EXPECT_EQ(outer.key, std::string("layer"));
  EXPECT_EQ(outer.value, 3);
  EXPECT_LE(outer.begin_ns, recording.events[0].begin_ns);
  EXPECT_GE(outer.end_ns, recording.events[0].end_ns);
  EXPECT_NE(recording.events[2].thread, outer.thread);
  ASSERT_TRUE(Start());
  EXPECT_TRUE(Stop().events.empty());
}

TEST(TimelineTest, KeepsAnUpperBound) {
  ASSERT_TRUE(Start());
  for (size_t i = 0; i < kEventsMax + 5; ++i) Span span("many");
  Recording recording = Stop();
  EXPECT_EQ(recording.events.size(), kEventsMax);
  EXPECT_EQ(recording.dropped, 5u);
}

}  // namespace
}  // namespace kt::timeline
