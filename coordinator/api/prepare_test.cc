// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/api/api_error.h"
#include "coordinator/api/api_key.h"
#include "coordinator/api/request_parser.h"
#include "tests/testing/fake_generation.h"

namespace kt::api {
namespace {

using ::testing::HasSubstr;

const ModelFacts kFacts = {.name = "m", .context_length = 100, .vocab_size = 257};

class PrepareTest : public ::testing::Test {
 protected:
  absl::StatusOr<PreparedCall> Run(Endpoint endpoint, const std::string& body) {
    auto request = ParseRequest(endpoint, body, kFacts, {});
    if (!request.ok()) return request.status();
    return Prepare(*std::move(request), renderer_, tokenizer_, kFacts,
                   LongestTokenBytes(tokenizer_));
  }
  absl::StatusOr<PreparedCall> Completion(size_t prompt, const std::string& more) {
    return Run(Endpoint::kCompletion,
               R"({"prompt":")" + std::string(prompt, 'x') + "\"" + more + "}");
  }

  testing::FakeTokenizer tokenizer_;
  testing::FakeRenderer renderer_;
};

TEST_F(PrepareTest, AbsentMaxTokensFillsTheContextForChatAndIs16ForCompletions) {
  auto chat = Run(Endpoint::kChat, R"({"messages":[{"role":"user","content":"hi"}]})");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->generations[0].prompt_ids.size(), 8u);  // "[user]hi"
  EXPECT_EQ(chat->generations[0].max_new_tokens, 92);
  EXPECT_EQ(chat->generations[0].id, chat->request.id);
  EXPECT_EQ(Completion(50, "")->generations[0].max_new_tokens, 16);
  EXPECT_EQ(Completion(95, "")->generations[0].max_new_tokens, 5);
}

TEST_F(PrepareTest, TheLimitIsExactAndTheErrorHasBothNumbers) {
  EXPECT_EQ(Completion(99, "")->generations[0].max_new_tokens, 1);
  EXPECT_TRUE(Completion(60, R"(,"max_tokens":40)").ok());
  for (size_t prompt : {100, 101}) {
    auto call = Completion(prompt, "");
    ASSERT_FALSE(call.ok());
    EXPECT_EQ(ErrorCode(call.status()), "context_length_exceeded");
    EXPECT_EQ(ErrorParam(call.status()), "prompt");
    EXPECT_THAT(Message(call.status()), HasSubstr("maximum context length is 100 tokens"));
    EXPECT_THAT(Message(call.status()), HasSubstr(fmt::format("{} tokens", prompt)));
  }
  auto call = Completion(60, R"(,"max_tokens":41)");
  EXPECT_EQ(ErrorCode(call.status()), "context_length_exceeded");
  EXPECT_THAT(
      Message(call.status()),
      HasSubstr("is 100 tokens, but 101 were requested (60 in the prompt, 41 in the answer)"));
  EXPECT_THAT(Message(Completion(60, R"(,"max_tokens":2147483647)").status()),
              HasSubstr("2147483707 were requested"));
  // The prompt alone may fill the context.
  EXPECT_EQ(Completion(100, R"(,"max_tokens":0,"echo":true)")->generations[0].max_new_tokens, 0);
}

TEST_F(PrepareTest, TextThatCannotFitIsRefusedUntokenized) {
  auto call = Completion(100000, "");
  EXPECT_EQ(ErrorCode(call.status()), "context_length_exceeded");
  EXPECT_THAT(Message(call.status()), HasSubstr("(100000 bytes)"));
}

TEST_F(PrepareTest, TokensThatTheModelLacksAreRefused) {
  const ModelFacts facts = {.name = "m", .context_length = 100, .vocab_size = 'b' + 1};
  EXPECT_TRUE(Tokenize("ab", "prompt", tokenizer_, facts, 1).ok());
  auto status = Tokenize("abc", "prompt", tokenizer_, facts, 1).status();
  EXPECT_EQ(ErrorParam(status), "prompt");
  EXPECT_THAT(Message(status), HasSubstr("\"c\" has the id 99"));
}

TEST_F(PrepareTest, ManyPromptsGetIdsOfTheirOwn) {
  auto call = Run(Endpoint::kCompletion, R"({"prompt":["ab","c"],"n":3,"rid":"r","echo":true})");
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->num_choices(), 6);
  EXPECT_EQ(call->generations[0].id, "r-0");
  EXPECT_EQ(call->generations[1].id, "r-1");
  EXPECT_EQ(call->prompt_tokens, 3);
  EXPECT_THAT(call->echo_texts, ::testing::ElementsAre("ab", "c"));
  EXPECT_THAT(
      Message(Run(Endpoint::kCompletion, R"({"prompt":["ab",")" + std::string(200, 'x') + "\"]}")
                  .status()),
      HasSubstr("prompt[1] has 200 tokens"));
}

TEST_F(PrepareTest, MinTokensCannotExceedTheAnswer) {
  EXPECT_THAT(Message(Completion(10, R"(,"max_tokens":4,"min_tokens":5)").status()),
              HasSubstr("min_tokens must be at most the 4 tokens of the answer, got 5"));
}

TEST_F(PrepareTest, TemplateFailuresAreTheRequestsErrors) {
  for (const char* kwargs :
       {R"({"raise":"roles must alternate"})", R"({"loop":1})", R"({"allocate":1})"}) {
    auto call =
        Run(Endpoint::kChat,
            fmt::format(
                R"({{"messages":[{{"role":"user","content":"hi"}}],"chat_template_kwargs":{}}})",
                kwargs));
    ASSERT_FALSE(call.ok());
    EXPECT_EQ(call.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ErrorCode(call.status()), "chat_template_error");
  }
}

TEST_F(PrepareTest, TheAnswerPrefixFollowsTheRenderedPrompt) {
  auto call = Run(
      Endpoint::kChat,
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"Well"}],"continue_final_message":true})");
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(tokenizer_.Decode(call->generations[0].prompt_ids, true), "[user]qWell");
}

TEST(ApiKeyTest, OnlyTheKeyMatches) {
  EXPECT_TRUE(BearerMatches("Bearer abc", "abc"));
  EXPECT_TRUE(BearerMatches("bearer abc", "abc"));
  for (const char* other : {"", "abc", "Bearer", "Bearer ", "Bearer abd", "Bearer ab",
                            "Bearer abcd", "Bearer abcabc", "Basic abc", "Bearer  abc"}) {
    EXPECT_FALSE(BearerMatches(other, "abc")) << other;
  }
}

TEST(NewIdTest, IdsDiffer) { EXPECT_NE(NewId("a"), NewId("a")); }

}  // namespace
}  // namespace kt::api
