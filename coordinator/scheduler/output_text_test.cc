// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/output_text.h"

#include <gtest/gtest.h>

#include "common/sim/rng.h"

namespace kt {
namespace {

TEST(OutputTextTest, WithoutStopStringsNothingIsHeldBack) {
  const StopStrings stops({});
  OutputText text(&stops);
  EXPECT_EQ(text.Push("hello"), "hello");
  EXPECT_EQ(text.Flush(), "");
}

TEST(OutputTextTest, HoldsBackWhatMayBecomeAStopString) {
  const StopStrings stops({"END"});
  OutputText text(&stops);
  EXPECT_EQ(text.Push("the E"), "the ");
  EXPECT_EQ(text.Push("N"), "");
  EXPECT_EQ(text.Push("x"), "ENx");
  EXPECT_EQ(text.Push("E"), "");
  EXPECT_EQ(text.Flush(), "E");
  EXPECT_EQ(text.found(), nullptr);
}

TEST(OutputTextTest, CutsAtAMatchAcrossPieces) {
  const StopStrings stops({"END"});
  OutputText text(&stops);
  EXPECT_EQ(text.Push("a E"), "a ");
  EXPECT_EQ(text.Push("ND b"), "");
  ASSERT_NE(text.found(), nullptr);
  EXPECT_EQ(*text.found(), "END");
  EXPECT_EQ(text.Flush(), "");
}

TEST(OutputTextTest, FallsBackToAShorterBeginning) {
  const StopStrings stops({"aab"});
  OutputText text(&stops);
  EXPECT_EQ(text.Push("aaa"), "a");
  EXPECT_EQ(text.Push("b"), "");
  EXPECT_NE(text.found(), nullptr);
}

TEST(OutputTextTest, TheMatchThatEndsFirstWinsAndThenTheLongest) {
  const StopStrings stops({"abcd", "bc", "abc"});
  OutputText text(&stops);
  EXPECT_EQ(text.Push("xabcd"), "x");
  EXPECT_EQ(*text.found(), "abc");
}

TEST(OutputTextTest, NeverSplitsACharacter) {
  const StopStrings stops({"\xC3\xA9!"});
  OutputText text(&stops);
  EXPECT_EQ(text.Push("x\xC3\xA9"), "x");
  EXPECT_EQ(text.Push("\xC3\xA8"), "\xC3\xA9\xC3\xA8");
}

TEST(OutputTextTest, PiecesDoNotMatter) {
  Rng rng(7);
  const auto random_text = [&rng](int size) {
    std::string s;
    for (int i = 0; i < size; ++i) s += static_cast<char>('a' + rng.Between(0, 2));
    return s;
  };
  int found = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> strings;
    for (int i = rng.Between(1, 3); i > 0; --i) strings.push_back(random_text(rng.Between(1, 6)));
    const StopStrings stops(strings);
    const std::string whole = random_text(rng.Between(0, 30));
    OutputText at_once(&stops), in_pieces(&stops);
    std::string a = at_once.Push(whole), b;
    for (size_t at = 0; at < whole.size() && in_pieces.found() == nullptr;) {
      const size_t size = rng.Between(1, 4);
      b += in_pieces.Push(std::string_view(whole).substr(at, size));
      at += size;
    }
    a += at_once.Flush();
    b += in_pieces.Flush();
    ASSERT_EQ(a, b);
    ASSERT_EQ(at_once.found(), in_pieces.found());
    size_t first_end = std::string::npos;
    for (const std::string& s : strings) {
      if (const size_t at = whole.find(s); at != std::string::npos)
        first_end = std::min(first_end, at + s.size());
    }
    ASSERT_EQ(at_once.found() == nullptr, first_end == std::string::npos);
    if (at_once.found() == nullptr) {
      ASSERT_EQ(a, whole);
    } else {
      ASSERT_EQ(a + *at_once.found(), whole.substr(0, first_end));
      ++found;
    }
  }
  EXPECT_GT(found, 100);
}

}  // namespace
}  // namespace kt
