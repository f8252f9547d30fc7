// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/response.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "common/base/status.h"
#include "tests/testing/fake_generation.h"

namespace kt::api {
namespace {

using ::testing::HasSubstr;

class ResponseTest : public ::testing::Test {
 protected:
  Response Make(Endpoint endpoint, std::function<void(PreparedCall&)> change = nullptr) {
    PreparedCall call;
    call.request.endpoint = endpoint;
    call.request.id = "id-1";
    call.created = 7;
    call.generations.resize(1);
    call.generations[0].prompt_ids = {'h', 'i'};
    call.prompt_tokens = 2;
    if (change) change(call);
    return Response(std::make_shared<const PreparedCall>(std::move(call)), "m", &tokenizer_);
  }

  static GenerationEvent Event(const std::string& text, std::vector<int32_t> ids,
                               FinishReason finish = FinishReason::kNone, int choice = 0) {
    GenerationEvent event;
    event.choice = choice;
    event.text = text;
    event.token_ids = std::move(ids);
    event.finish_reason = finish;
    return event;
  }

  static std::vector<std::string> Chunks(Response& response, GenerationEvent event,
                                         int prompt = 0) {
    std::vector<Json> chunks;
    response.Add(prompt, std::move(event), &chunks);
    std::vector<std::string> out;
    for (const Json& chunk : chunks) out.push_back(DumpJson(chunk));
    return out;
  }

  testing::FakeTokenizer tokenizer_;
};

TEST_F(ResponseTest, AWholeChatAnswerHasOpenAisShape) {
  Response response = Make(Endpoint::kChat);
  Chunks(response, Event("a", {'a'}));
  GenerationEvent last = Event("b", {'b', '!'}, FinishReason::kStop);
  last.matched_stop = "!";
  last.cached_tokens = 1;
  Chunks(response, std::move(last));
  EXPECT_EQ(
      DumpJson(response.Whole()),
      R"({"id":"id-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant",)"
      R"("content":"ab","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":"stop","matched_stop":"!"}],)"
      R"("usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}})");
}

TEST_F(ResponseTest, AChatStreamBeginsWithTheRoleAndEndsWithTheReason) {
  Response response = Make(Endpoint::kChat, [](PreparedCall& call) {
    call.request.stream = call.request.include_usage = true;
  });
  auto chunks = Chunks(response, Event("a", {'a'}));
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(
      chunks[0],
      R"({"id":"id-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null})");
  EXPECT_THAT(chunks[1], HasSubstr(R"("delta":{"content":"a"})"));
  EXPECT_TRUE(Chunks(response, Event("", {0xE2})).empty());  // a character is incomplete
  GenerationEvent last = Event("b", {testing::FakeTokenizer::kEnd}, FinishReason::kStop);
  last.matched_token = testing::FakeTokenizer::kEnd;
  chunks = Chunks(response, std::move(last));
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_THAT(
      chunks[1],
      HasSubstr(
          R"("choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","matched_stop":256}])"));
  EXPECT_THAT(
      DumpJson(response.UsageChunk()),
      HasSubstr(
          R"("choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5)"));
}

TEST_F(ResponseTest, ContinuousUsageCountsInEveryChunk) {
  Response response = Make(Endpoint::kCompletion, [](PreparedCall& call) {
    call.request.stream = call.request.continuous_usage = true;
  });
  EXPECT_THAT(Chunks(response, Event("a", {'a'}))[0], HasSubstr(R"("completion_tokens":1)"));
  EXPECT_THAT(Chunks(response, Event("b", {'b'}))[0], HasSubstr(R"("completion_tokens":2)"));
}

TEST_F(ResponseTest, ChatLogprobsShowBytesAndWhatPartsOfCharactersAre) {
  Response response =
      Make(Endpoint::kChat, [](PreparedCall& call) { call.request.generation.logprobs = true; });
  GenerationEvent event = Event("", {0xE2}, FinishReason::kLength);
  event.logprobs = {{0xE2, -std::numeric_limits<float>::infinity(), {{'a', -0.5f}}}};
  Chunks(response, std::move(event));
  EXPECT_THAT(DumpJson(response.Whole()),
              HasSubstr("\"logprobs\":{\"content\":[{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-9999."
                        "0,\"bytes\":[226],"
                        "\"top_logprobs\":[{\"token\":\"a\",\"logprob\":-0.5,\"bytes\":[97]}]}],"
                        "\"refusal\":null}"));
}

TEST_F(ResponseTest, CompletionLogprobsHaveOffsetsInCharacters) {
  Response response = Make(Endpoint::kCompletion,
                           [](PreparedCall& call) { call.request.generation.logprobs = true; });
  GenerationEvent event =
      Event("\xC3\xA9x", {0xC3, 0xA9, 'x', testing::FakeTokenizer::kEnd}, FinishReason::kStop);
  for (int32_t id : event.token_ids) event.logprobs.push_back({id, -1, {{id, -1}}});
  Chunks(response, std::move(event));
  Json logprobs = response.Whole()["choices"][0]["logprobs"];
  EXPECT_EQ(DumpJson(logprobs["text_offset"]), "[0,1,1,2]");
  EXPECT_EQ(logprobs["tokens"].size(), 4u);
  EXPECT_EQ(logprobs["top_logprobs"][2]["x"], -1.0);
}

TEST_F(ResponseTest, EchoPutsThePromptBeforeEveryChoice) {
  const auto echo = [](bool stream) {
    return [stream](PreparedCall& call) {
      call.request.stream = stream;
      call.request.echo = call.request.generation.logprobs = true;
      call.request.generation.n = 2;
      call.echo_texts = {"hi"};
    };
  };
  for (bool stream : {false, true}) {
    Response response = Make(Endpoint::kCompletion, echo(stream));
    std::vector<std::string> chunks;
    for (int choice : {0, 1}) {
      GenerationEvent event = Event("!", {'!'}, FinishReason::kLength, choice);
      event.logprobs = {{'!', -1, {}}};
      if (choice == 0) event.prompt_logprobs = {{'i', -2, {}}};
      for (auto& chunk : Chunks(response, std::move(event))) chunks.push_back(chunk);
    }
    const std::string expected =
        R"("text":"hi!","logprobs":{"tokens":["h","i","!"],"token_logprobs":[null,-2.0,-1.0],"top_logprobs":[null,{},{}],"text_offset":[0,1,2]},"finish_reason":"length")";
    if (stream) {
      ASSERT_EQ(chunks.size(), 2u);
      EXPECT_THAT(chunks[0], HasSubstr(expected));
      EXPECT_THAT(chunks[1], HasSubstr(expected));
    } else {
      const Json whole = response.Whole();
      EXPECT_THAT(DumpJson(whole["choices"][1]), HasSubstr(expected));
      EXPECT_EQ(whole["usage"]["completion_tokens"], 2);
    }
  }
}

TEST_F(ResponseTest, PromptsAndChoicesShareOneIndex) {
  Response response = Make(Endpoint::kCompletion, [](PreparedCall& call) {
    call.request.generation.n = 2;
    call.generations.resize(2);
  });
  for (int prompt : {1, 0}) {
    for (int choice : {1, 0})
      Chunks(response,
             Event(fmt::format("{}{}", prompt, choice), {'x'}, FinishReason::kLength, choice),
             prompt);
  }
  const Json whole = response.Whole();
  const char* texts[] = {"00", "01", "10", "11"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(whole["choices"][i]["index"], i);
    EXPECT_EQ(whole["choices"][i]["text"], texts[i]);
  }
}

}  // namespace
}  // namespace kt::api
