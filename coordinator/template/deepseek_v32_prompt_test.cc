// SPDX-License-Identifier: Apache-2.0
#include "coordinator/template/deepseek_v32_prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Json Parsed(const char* text) { return *ParseJson(text); }

std::string Render(const Json& variables) {
  auto text = DeepseekV32Prompt().Render(variables);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

std::string Error(const char* variables) {
  auto status = DeepseekV32Prompt().Render(Parsed(variables)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << variables;
  return Message(status);
}

TEST(DeepseekV32PromptTest, PublishedPrompts) {
  const std::string path = KT_SOURCE_DIR "/../shared/fixtures/templates/deepseek-v3.2-encoder.json";
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << path << " is not there: the published encoder's prompts were not checked";
  Json golden = *ReadJsonFile(path);
  int rendered = 0;
  for (Json& item : golden["cases"]) {
    SCOPED_TRACE(item["name"].get<std::string>());
    auto text = DeepseekV32Prompt().Render(item["input"]);
    if (item.contains("error")) {
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, item["rendered"].get<std::string>());
    ++rendered;
  }
  EXPECT_GE(rendered, 8);
}

TEST(DeepseekV32PromptTest, ThinkingOpensBehindTheLastUserOnly) {
  Json chat = Parsed(R"({"messages": [
    {"role": "system", "content": "S"}, {"role": "user", "content": "1"},
    {"role": "assistant", "content": "2", "reasoning_content": "dropped"}, {"role": "user", "content": "3"}]})");
  const std::string earlier =
      "<｜begin▁of▁sentence｜>S<｜User｜>1<｜Assistant｜></"
      "think>2<｜end▁of▁sentence｜><｜User｜>3<｜Assistant｜>";
  EXPECT_EQ(Render(chat), earlier + "</think>");
  chat["thinking"] = true;
  EXPECT_EQ(Render(chat), earlier + "<think>");
}

TEST(DeepseekV32PromptTest, CallsAndResultsOfTheLastTurnKeepTheReasoning) {
  Json chat = Parsed(R"({"thinking": true, "messages": [
    {"role": "user", "content": "?"},
    {"role": "assistant", "content": null, "reasoning_content": "R", "tool_calls": [
      {"function": {"name": "f", "arguments": "{\"s\": \"a <b>\", \"n\": 1.0, \"l\": [1, \"x\"], \"z\": null}"}},
      {"function": {"name": "g", "arguments": {}}}]},
    {"role": "tool", "content": "one"}, {"role": "tool", "content": "two"}]})");
  const std::string calls =
      "\n\n<｜DSML｜function_calls>\n"
      "<｜DSML｜invoke name=\"f\">\n"
      "<｜DSML｜parameter name=\"s\" string=\"true\">a <b></｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"n\" string=\"false\">1.0</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"l\" string=\"false\">[1, \"x\"]</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"z\" string=\"false\">null</｜DSML｜parameter>\n"
      "</｜DSML｜invoke>\n"
      "<｜DSML｜invoke name=\"g\">\n\n</｜DSML｜invoke>\n"
      "</｜DSML｜function_calls><｜end▁of▁sentence｜>"
      "\n\n<function_results>\n<result>one</result>\n<result>two</result>\n</function_results>\n\n";
  EXPECT_EQ(Render(chat), "<｜begin▁of▁sentence｜><｜User｜>?<｜Assistant｜><think>R</think>" +
                              calls + "<think>");
  chat["thinking"] = false;
  EXPECT_EQ(Render(chat),
            "<｜begin▁of▁sentence｜><｜User｜>?<｜Assistant｜></think>" + calls + "</think>");
  chat["thinking"] = true;
  chat["messages"].push_back({{"role", "assistant"}, {"content", "done"}});
  chat["messages"].push_back({{"role", "user"}, {"content", "!"}});
  EXPECT_EQ(Render(chat), "<｜begin▁of▁sentence｜><｜User｜>?<｜Assistant｜></think>" + calls +
                              "</think>done<｜end▁of▁sentence｜><｜User｜>!<｜Assistant｜><think>");
}

TEST(DeepseekV32PromptTest, ToolsAndResponseFormatRideOnTheSystemMessage) {
  Json chat = Parsed(R"({"messages": [{"role": "user", "content": "?"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "é"}},
              {"type": "function", "function": {"name": "g"}}],
    "response_format": {"type": "object", "properties": {}}})");
  const std::string sections =
      "</functions>\n\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema "
      "to "
      "reply:\n{\"type\": \"object\", \"properties\": {}}<｜User｜>?<｜Assistant｜></think>";
  std::string text = Render(chat);
  EXPECT_THAT(text, StartsWith("<｜begin▁of▁sentence｜>\n\n## Tools\n"));
  EXPECT_THAT(
      text,
      EndsWith("\n<functions>\n{\"name\": \"f\", \"description\": \"é\"}\n{\"name\": \"g\"}\n" +
               sections));
  chat["messages"].insert(chat["messages"].begin(), Json{{"role", "system"}, {"content", "S"}});
  EXPECT_THAT(Render(chat), StartsWith("<｜begin▁of▁sentence｜>S\n\n## Tools\n"));
  // As the published encoder takes them, too.
  Json ridden = chat;
  ridden["messages"][0]["tools"] = chat["tools"];
  ridden["messages"][0]["response_format"] = chat["response_format"];
  ridden.erase("tools");
  ridden.erase("response_format");
  EXPECT_EQ(Render(ridden), Render(chat));
  chat["tools"] = Json::array();
  chat["response_format"] = nullptr;
  EXPECT_EQ(Render(chat), "<｜begin▁of▁sentence｜>S<｜User｜>?<｜Assistant｜></think>");
}

TEST(DeepseekV32PromptTest, WhatHasNoFormIsRefusedWithItsPlace) {
  EXPECT_THAT(Error(R"({})"), HasSubstr("messages must be a list"));
  EXPECT_THAT(
      Error(R"({"messages": [{"role": "function", "content": "x"}]})"),
      HasSubstr("messages[0].role must be system, user, assistant or tool, got \"function\""));
  EXPECT_THAT(Error(R"({"messages": [], "thinking": "yes"})"), HasSubstr("thinking"));
  EXPECT_THAT(Error(R"({"messages": [], "tools": "f"})"),
              HasSubstr("messages[0].tools must be a list"));
  EXPECT_THAT(Error(R"({"messages": [], "tools": [{"name": "f"}]})"),
              HasSubstr("tools[0].function"));
  EXPECT_THAT(
      Error(
          R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
                        "thinking": true})"),
      HasSubstr("messages[1]: with thinking on"));
  EXPECT_THAT(
      Error(
          R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]})"),
      HasSubstr("messages[0].tool_calls[0].function.arguments"));
  EXPECT_THAT(
      Error(
          R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]})"),
      HasSubstr("messages[0].tool_calls[0].function.name"));
  for (
      const char* orphan :
      {R"({"messages": [{"role": "tool", "content": "x"}]})",
       R"({"messages": [{"role": "assistant", "content": "a"}, {"role": "tool", "content": "x"}]})",
       R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
                         {"role": "user", "content": "u"}, {"role": "tool", "content": "x"}]})",
       R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
                         {"role": "tool", "content": "x"}, {"role": "tool", "content": "x"}]})"}) {
    EXPECT_THAT(Error(orphan), HasSubstr("must follow an assistant's with tool_calls"));
  }
}

}  // namespace
}  // namespace kt
