// SPDX-License-Identifier: Apache-2.0
#include "coordinator/template/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::HasSubstr;

Json Parsed(const char* text) { return *ParseJson(text); }

TEST(NormalizeMessagesTest, TextPartsAreJoined) {
  EXPECT_EQ(
      *NormalizeMessages(Parsed(
          R"([{"role": "user", "content": [{"type": "text", "text": "a"}, "b"], "name": "x"}])")),
      Parsed(R"([{"role": "user", "content": "a\nb", "name": "x"}])"));
}

TEST(NormalizeMessagesTest, ArgumentsTakeTheFormAskedFor) {
  Json messages = Parsed(
      R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2]}"}},
                                                                  {"function": {"name": "g", "arguments": ""}}]}])");
  Json objects = *NormalizeMessages(messages);
  EXPECT_EQ(objects[0]["content"], nullptr);
  EXPECT_EQ(DumpJson(objects[0]["tool_calls"][0]["function"]["arguments"]), R"({"b":1,"a":[2]})");
  EXPECT_EQ(objects[0]["tool_calls"][1]["function"]["arguments"], Json::object());
  Json texts = *NormalizeMessages(messages, ToolArguments::kText);
  EXPECT_EQ(texts[0]["tool_calls"], messages[0]["tool_calls"]);
}

TEST(NormalizeMessagesTest, EmptyToolCallsGo) {
  for (const char* calls : {"null", "[]"}) {
    Json messages = Parsed(R"([{"role": "assistant", "content": "x"}])");
    messages[0]["tool_calls"] = Parsed(calls);
    EXPECT_FALSE((*NormalizeMessages(messages))[0].contains("tool_calls"));
  }
}

TEST(NormalizeMessagesTest, ErrorsNameThePlace) {
  const std::pair<const char*, const char*> kBad[] = {
      {R"({})", "messages"},
      {R"(["x"])", "messages[0]"},
      {R"([{"content": 5}])", "messages[0].content"},
      {R"([{"content": "x"}, {"content": [{"type": "image_url"}]}])", "messages[1].content[0]"},
      {R"([{"content": [{"type": "text", "text": 1}]}])", "messages[0].content[0]"},
      {R"([{"tool_calls": "x"}])", "messages[0].tool_calls"},
      {R"([{"tool_calls": [{}]}])", "messages[0].tool_calls[0].function"},
      {R"([{"tool_calls": [{"function": {"arguments": "{"}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
      {R"([{"tool_calls": [{"function": {"arguments": "[1]"}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
  };
  for (const auto& [text, place] : kBad) {
    auto status = NormalizeMessages(Parsed(text)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(Message(status), HasSubstr(place)) << text;
  }
}

}  // namespace
}  // namespace kt
