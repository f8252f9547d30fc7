// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/utf8.h"

#include <gtest/gtest.h>

namespace kt {
namespace {

TEST(Utf8Test, InvalidSequencesAreFound) {
  EXPECT_EQ(FindInvalidUtf8("aé漢😀"), std::string_view::npos);
  EXPECT_EQ(FindInvalidUtf8("ab\xFF"), 2u);
  EXPECT_EQ(FindInvalidUtf8("\xC0\x80"), 0u);          // overlong
  EXPECT_EQ(FindInvalidUtf8("a\xED\xA0\x80"), 1u);     // surrogate
  EXPECT_EQ(FindInvalidUtf8("\xF4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(FindInvalidUtf8("é\xE6\xBC"), 2u);         // cut short
}

TEST(Utf8Test, EachMaximalInvalidPartIsReplacedOnce) {
  EXPECT_EQ(ReplaceInvalidUtf8("a\xE2\x82z"), "a\uFFFDz");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x9F\x98\xF0\x9F\x98\x80"), "\uFFFD😀");
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\x80"), "\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\x80\xE6\xBC"), "\uFFFD\uFFFD");
}

TEST(Utf8Test, OnlyWhatMayBecomeACharacterIsHeldBack) {
  EXPECT_EQ(IncompleteUtf8Tail(""), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("aé"), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("a\xC3"), 1u);
  EXPECT_EQ(IncompleteUtf8Tail("a\xE2\x82"), 2u);
  EXPECT_EQ(IncompleteUtf8Tail("a\xF0\x9F\x98"), 3u);
  EXPECT_EQ(IncompleteUtf8Tail("\xF4\x90"), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("\xC0"), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("\xE2\x82\x80\x80"), 0u);
  EXPECT_EQ(IncompleteUtf8Tail("\xED\xA0"), 2u);
}

TEST(Utf8Test, CharactersAreReadBothWaysAndWritten) {
  std::string text = "é😀";
  size_t pos = 0;
  EXPECT_EQ(NextUtf8(text, &pos), U'é');
  EXPECT_EQ(NextUtf8(text, &pos), U'😀');
  EXPECT_EQ(pos, text.size());
  EXPECT_EQ(PreviousUtf8(text, &pos), U'😀');
  EXPECT_EQ(pos, 2u);
  std::string written;
  for (char32_t c : {U'a', U'é', U'漢', U'😀'}) AppendUtf8(c, &written);
  EXPECT_EQ(written, "aé漢😀");
}

}  // namespace
}  // namespace kt
