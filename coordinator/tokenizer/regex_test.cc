// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Matches(std::string_view pattern, const std::string& text) {
  auto regex = Regex::Compile(pattern);
  if (!regex.ok()) return {std::string(regex.status().ToString())};
  RegexRun run(text.size());
  std::vector<std::string> matches;
  auto status = regex->ForEachMatch(text, &run, [&](size_t begin, size_t end) {
    matches.push_back(text.substr(begin, end - begin));
  });
  EXPECT_TRUE(status.ok()) << status;
  return matches;
}

TEST(RegexTest, ClassesNestAndIntersect) {
  EXPECT_THAT(Matches("[a-z&&[^aeiou]]+", "hello"), ElementsAre("h", "ll"));
  EXPECT_THAT(Matches("[^a-z&&[^aeiou]]+", "hxe-"), ElementsAre("e-"));
  EXPECT_THAT(Matches("[[a-c][x-z]]+", "axqb"), ElementsAre("ax", "b"));
  EXPECT_THAT(Matches("[\\p{L}\\p{M}&&[^\\p{Han}]]+", "ab漢字cd"), ElementsAre("ab", "cd"));
  EXPECT_THAT(Matches("[\\p{L}&&\\p{Lu}]", "aB"), ElementsAre("B"));
  EXPECT_THAT(Matches("[^\\S\\n]+", "a \t\nb"), ElementsAre(" \t"));
  EXPECT_THAT(Matches("[\\s\\S]", "a\n"), ElementsAre("a", "\n"));
  EXPECT_THAT(Matches("[a\\-z\\]]+", "-]b"), ElementsAre("-]"));
  EXPECT_THAT(Matches("[a-]+", "-ab"), ElementsAre("-a"));
}

// An intersection of what tokenizers use stays one class of PCRE2: groups would cost a stack frame
// per character.
TEST(RegexTest, IntersectionsOfCategoriesAreOneClass) {
  EXPECT_EQ(TranslateOnigurumaRegex("[\\p{L}&&[^\\p{Han}]]")->substr(0, 2), "[^");
  EXPECT_EQ(*TranslateOnigurumaRegex("[\\p{L}&&\\p{Lu}]"), "[\\p{Lu}]");
}

TEST(RegexTest, SetsAreThoseOfUnicode) {
  EXPECT_THAT(Matches("\\s", "a\u180E\u0085\u3000"), ElementsAre("\u0085", "\u3000"));
  EXPECT_THAT(Matches("\\w+", "ñ_1\u0301\u203F-"), ElementsAre("ñ_1\u0301\u203F"));
  EXPECT_THAT(Matches("\\h+", "fg0"), ElementsAre("f", "0"));
  EXPECT_THAT(Matches("\\p{Han}", "、漢"), ElementsAre("漢"));  // the script, not its extensions
  EXPECT_THAT(Matches("\\p{^L}+", "a12b"), ElementsAre("12"));
  EXPECT_THAT(Matches("\\p{Uppercase_Letter}", "aB"), ElementsAre("B"));
  EXPECT_THAT(Matches("(?i:'s|k)", "'\u017F\u212A"), ElementsAre("'\u017F", "\u212A"));
}

TEST(RegexTest, ConstructsThatPcreReadsDifferently) {
  EXPECT_THAT(Matches("a{,2}b", "aab"), ElementsAre("aab"));
  EXPECT_THAT(Matches("a{1,", "a{1,"), ElementsAre("a{1,"));
  EXPECT_THAT(Matches("\\v", "\n\v"), ElementsAre("\v"));
  EXPECT_THAT(Matches("(?m:a.)", "a\n"), ElementsAre("a\n"));
  EXPECT_THAT(Matches("a.", "a\n"), IsEmpty());
  EXPECT_THAT(Matches("\\s+$", "a  \nb"), ElementsAre("  "));
  EXPECT_THAT(Matches("\\x41\\u00e9\\x{4e2d}", "Aé中"), ElementsAre("Aé中"));
  EXPECT_THAT(Matches("x*", "axx"), ElementsAre("", "xx"));
}

TEST(RegexTest, WhatIsNotSupportedIsNamed) {
  for (const char* pattern :
       {"(a)\\1", "\\R",        "\\X",     "\\G",         "\\K",           "a{1,2}+",
        "a(?i)b", "(?x)a",      "(?~a)",   "[[:alpha:]]", "\\p{Nonsense}", "[]",
        "[a&&]",  "[z-a]",      "[a",      "\\",          "\\x{110000}",   "\\xZZ",
        "(?#c)",  "\\p{Punct}", "a{1000}", "a{1,1000}"}) {
    auto status = Regex::Compile(pattern).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(Message(status), HasSubstr("not supported")) << pattern;
  }
  for (const char* pattern : {"(", ")", "*", "(?<=a+)"}) {
    EXPECT_EQ(Regex::Compile(pattern).status().code(), absl::StatusCode::kInvalidArgument)
        << pattern;
  }
}

// The "a" behind the spaces is out of reach, but PCRE2 cannot know that there is no match at all.
TEST(RegexTest, NoTextHoldsItForLong) {
  for (size_t length : {100'000, 4'000'000}) {
    const std::string text = std::string(length, ' ') + "ba";
    for (const char* pattern : {"\\s+a", "(\\s+)+a", "(?:\\s|\\s\\s)+a", "\\s+\\s+a", "\\s++c?a",
                                "\\s*\\s*\\s*a", "\\s+(?=\\s+a)b", "(?:\\s*x?)*a"}) {
      auto regex = Regex::Compile(pattern);
      ASSERT_TRUE(regex.ok());
      RegexRun run(0);
      auto status = regex->ForEachMatch(text, &run, [](size_t, size_t) {});
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << pattern;
      EXPECT_THAT(Message(status), HasSubstr("limit exceeded")) << pattern;
    }
  }
}

// What one text leaves over of its work is all that the next one has.
TEST(RegexTest, ARunBoundsAllItsTextsTogether) {
  auto regex = Regex::Compile("\\s+a");
  ASSERT_TRUE(regex.ok());
  const std::string text = std::string(300, ' ') + "ba";  // about 300 * 300 / 2 steps back, twice
  RegexRun run(0);
  auto again = [&] { return regex->ForEachMatch(text, &run, [](size_t, size_t) {}); };
  EXPECT_TRUE(again().ok());
  int texts = 1;
  while (texts < 100 && again().ok()) ++texts;
  EXPECT_LT(texts, 100);
  EXPECT_FALSE(again().ok());
}

TEST(RegexTest, LongRepeatedGroupsFit) {
  std::string text(300'000, 'b');
  EXPECT_THAT(Matches("(?:(?=[a-z&&[^a]])[a-z])+", text), ElementsAre(text));
}

}  // namespace
}  // namespace kt
