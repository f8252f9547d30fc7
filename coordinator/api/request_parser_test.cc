// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/request_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/api/api_error.h"

namespace kt::api {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

const ModelFacts kFacts = {.name = "m", .context_length = 1000, .vocab_size = 300};

absl::StatusOr<ApiRequest> Chat(const std::string& more, const ApiDefaults& defaults = {}) {
  return ParseRequest(Endpoint::kChat,
                      R"({"messages":[{"role":"user","content":"hi"}])" + more + "}", kFacts,
                      defaults);
}

absl::StatusOr<ApiRequest> Completion(const std::string& more) {
  return ParseRequest(Endpoint::kCompletion, R"({"prompt":"hi")" + more + "}", kFacts, {});
}

TEST(RequestParserTest, EveryFieldOfAChatRequestArrives) {
  auto request = Chat(
      R"(,"model":"x","temperature":0.5,"top_p":0.25,"top_k":40,"min_p":0.125,"presence_penalty":1.5,
      "frequency_penalty":-0.5,"repetition_penalty":1.25,"seed":-1,"stop":["a","bc"],"logprobs":true,"top_logprobs":3,
      "logit_bias":{"5":-100,"7":1},"n":4,"max_tokens":9,"max_completion_tokens":8,"min_tokens":2,"ignore_eos":true,
      "skip_special_tokens":false,"stop_token_ids":[3,4],"stream":true,"rid":"my-id","user":"u",
      "stream_options":{"include_usage":true,"continuous_usage_stats":true},"chat_template_kwargs":{"enable_thinking":false},
      "reasoning_effort":"low","never_heard_of":1)");
  ASSERT_TRUE(request.ok()) << request.status();
  const GenerationRequest& g = request->generation;
  EXPECT_EQ(g.sampling.temperature, 0.5f);
  EXPECT_EQ(g.sampling.top_p, 0.25f);
  EXPECT_EQ(g.sampling.top_k, 40);
  EXPECT_EQ(g.sampling.min_p, 0.125f);
  EXPECT_EQ(g.sampling.presence_penalty, 1.5f);
  EXPECT_EQ(g.sampling.frequency_penalty, -0.5f);
  EXPECT_EQ(g.sampling.repetition_penalty, 1.25f);
  EXPECT_EQ(g.sampling.seed, UINT64_MAX);
  EXPECT_THAT(g.sampling.logit_bias, ElementsAre(Pair(5, -100), Pair(7, 1)));
  EXPECT_THAT(g.stop, ElementsAre("a", "bc"));
  EXPECT_THAT(g.stop_token_ids, ElementsAre(3, 4));
  EXPECT_EQ(g.n, 4);
  EXPECT_EQ(g.min_new_tokens, 2);
  EXPECT_TRUE(g.ignore_eos && g.logprobs && !g.skip_special_tokens && !g.prompt_logprobs);
  EXPECT_EQ(g.top_logprobs, 3);
  EXPECT_EQ(request->max_tokens, 8);  // max_completion_tokens is the newer name
  EXPECT_EQ(request->id, "my-id");
  EXPECT_TRUE(request->stream && request->include_usage && request->continuous_usage);
  EXPECT_EQ(
      DumpJson(request->template_variables),
      R"({"enable_thinking":false,"reasoning_effort":"low","messages":[{"role":"user","content":"hi"}],"tools":null,"add_generation_prompt":true})");
}

TEST(RequestParserTest, DefaultsComeFromTheModelAndNullIsAbsent) {
  ApiDefaults defaults{
      .temperature = 0.6f, .top_p = 0.95f, .min_p = 0.1f, .repetition_penalty = 1.1f, .top_k = 20};
  auto request = Chat(R"(,"temperature":null,"top_p":0.5)", defaults);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->generation.sampling.temperature, 0.6f);
  EXPECT_EQ(request->generation.sampling.top_p, 0.5f);
  EXPECT_EQ(request->generation.sampling.top_k, 20);
  EXPECT_EQ(request->generation.sampling.min_p, 0.1f);
  EXPECT_EQ(request->generation.sampling.repetition_penalty, 1.1f);
  request = Chat("");
  EXPECT_EQ(request->generation.sampling.temperature, 1.0f);
  EXPECT_EQ(request->generation.sampling.top_k, 0);
  EXPECT_FALSE(request->max_tokens.has_value());
  EXPECT_EQ(Chat(R"(,"top_k":-1)")->generation.sampling.top_k, 0);
  EXPECT_EQ(Chat(R"(,"temperature":1e-9)")->generation.sampling.temperature, 0.0f);
}

TEST(RequestParserTest, PromptsComeInFourForms) {
  const auto prompts = [](const std::string& value) {
    auto request = ParseRequest(Endpoint::kCompletion, R"({"prompt":)" + value + "}", kFacts, {});
    return request.ok() ? request->prompts : std::vector<Prompt>();
  };
  EXPECT_THAT(prompts(R"("a")"), ElementsAre(Prompt("a")));
  EXPECT_THAT(prompts(R"(["a","b"])"), ElementsAre(Prompt("a"), Prompt("b")));
  EXPECT_THAT(prompts("[1,2]"), ElementsAre(Prompt(std::vector<int32_t>{1, 2})));
  EXPECT_THAT(prompts("[[1],[2,3]]"),
              ElementsAre(Prompt(std::vector<int32_t>{1}), Prompt(std::vector<int32_t>{2, 3})));
}

TEST(RequestParserTest, CompletionLogprobsAreAFlagOrANumber) {
  EXPECT_FALSE(Completion("")->generation.logprobs);
  EXPECT_FALSE(Completion(R"(,"logprobs":false)")->generation.logprobs);
  EXPECT_TRUE(Completion(R"(,"logprobs":true)")->generation.logprobs);
  auto request = Completion(R"(,"logprobs":0)");
  EXPECT_TRUE(request->generation.logprobs);
  EXPECT_EQ(request->generation.top_logprobs, 0);
  EXPECT_EQ(Completion(R"(,"logprobs":5)")->generation.top_logprobs, 5);
  EXPECT_TRUE(Completion(R"(,"logprobs":1,"echo":true)")->generation.prompt_logprobs);
  EXPECT_TRUE(Completion(R"(,"max_tokens":0,"echo":true)")->generation.prompt_logprobs);
  EXPECT_FALSE(Completion(R"(,"echo":true)")->generation.prompt_logprobs);
}

TEST(RequestParserTest, ContentPartsAreJoinedAndToolArgumentsParsed) {
  auto request = ParseRequest(Endpoint::kChat, R"({"messages":[
      {"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
      {"role":"tool","content":"2","tool_call_id":"1"}]})",
                              kFacts, {});
  ASSERT_TRUE(request.ok()) << request.status();
  const Json& messages = request->template_variables["messages"];
  EXPECT_EQ(messages[0]["role"], "system");
  EXPECT_EQ(messages[0]["content"], "ab");
  EXPECT_EQ(messages[1]["content"], "");
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["arguments"]["x"], 1);
  EXPECT_EQ(messages[2]["tool_call_id"], "1");
}

TEST(RequestParserTest, TheFinalAssistantMessageCanBeContinued) {
  auto request = ParseRequest(
      Endpoint::kChat,
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"Well,"}],
      "continue_final_message":true})",
      kFacts, {});
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->answer_prefix, "Well,");
  EXPECT_EQ(request->template_variables["messages"].size(), 1u);
}

struct BadRequest {
  Endpoint endpoint;
  std::string body;
  std::string message;  // part of it
  std::string param;
  std::string code;
};

std::string WithMessages(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + more + "}";
}
std::string WithPrompt(const std::string& more) { return R"({"prompt":"hi",)" + more + "}"; }

std::string ManyStops(int count) {
  std::string list = R"("s")";
  for (int i = 1; i < count; ++i) list += R"(,"s")";
  return R"("stop":[)" + list + "]";
}

TEST(RequestParserTest, BadRequestsNameFieldValueAndRange) {
  constexpr Endpoint kChat = Endpoint::kChat, kText = Endpoint::kCompletion;
  const BadRequest kCases[] = {
      {kChat, "", "not valid JSON", "", "invalid_json"},
      {kChat, "[]", "must be a JSON object, got array []", "", "invalid_json"},
      {kChat, "{\"messages\":\"\xff\"}", "not valid JSON at byte", "", "invalid_json"},
      {kChat, "{\"messages\":" + std::string(100000, '['), "nested deeper than 64", "",
       "invalid_json"},
      {kText, "{\"prompt\":[" + std::string(5000000, ','), "more than 2097152 JSON values", "",
       "invalid_json"},
      {kChat, "{}", "messages must be a list with at least one message, got null", "messages", ""},
      {kChat, R"({"messages":[]})",
       "messages must be a list with at least one message, got array []", "messages", ""},
      {kChat, R"({"messages":"hi"})", "got string \"hi\"", "messages", ""},
      {kChat, R"({"messages":["hi"]})", "messages[0] must be an object", "messages[0]", ""},
      {kChat, R"({"messages":[{"content":"x"}]})",
       "messages[0].role must be system, developer, user, assistant, tool or function, got nothing",
       "messages[0].role", ""},
      {kChat, R"({"messages":[{"role":"wizard","content":"x"}]})", "got string \"wizard\"",
       "messages[0].role", ""},
      {kChat, R"({"messages":[{"role":7,"content":"x"}]})", "got number 7", "messages[0].role", ""},
      {kChat, R"({"messages":[{"role":"user"}]})",
       "messages[0].content must be a string or a list of text parts, got nothing",
       "messages[0].content", ""},
      {kChat, R"({"messages":[{"role":"user","content":null}]})", "got null", "messages[0].content",
       ""},
      {kChat, R"({"messages":[{"role":"user","content":5}]})", "got number 5",
       "messages[0].content", ""},
      {kChat, R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "got string \"image_url\"", "messages[0].content[0].type", "unsupported_parameter"},
      {kChat, R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
       "messages[0].content[0].text must be a string, got nothing", "messages[0].content[0].text",
       ""},
      {kChat, R"({"messages":[{"role":"assistant","content":"x","tool_calls":[1]}]})",
       "messages[0].tool_calls[0] must be an object", "messages[0].tool_calls[0]", ""},
      {kChat, WithMessages(R"("temperature":2.5)"),
       "temperature must be a number between 0 and 2, got number 2.5", "temperature", ""},
      {kChat, WithMessages(R"("temperature":"hot")"),
       "temperature must be a number between 0 and 2, got string \"hot\"", "temperature", ""},
      {kChat, WithMessages(R"("temperature":true)"), "got boolean true", "temperature", ""},
      {kChat, WithMessages(R"("temperature":NaN)"),
       "temperature must be a number between 0 and 2, got string \"NaN\"", "temperature", ""},
      {kChat, WithMessages(R"("top_p":-Infinity)"),
       "top_p must be a number above 0 and at most 1, got string \"-Infinity\"", "top_p", ""},
      {kChat, WithMessages(R"("presence_penalty":1e999)"),
       "presence_penalty must be a number between -2 and 2, got string \"1e999\"",
       "presence_penalty", ""},
      {kChat, WithMessages(R"("unknown":NaN)"), "not valid JSON", "", "invalid_json"},
      {kChat, WithMessages(R"("top_p":0)"),
       "top_p must be a number above 0 and at most 1, got number 0", "top_p", ""},
      {kChat, WithMessages(R"("top_p":1e-60)"), "top_p must be a number above 0", "top_p", ""},
      {kChat, WithMessages(R"("min_p":-0.1)"), "min_p must be a number between 0 and 1", "min_p",
       ""},
      {kChat, WithMessages(R"("top_k":-2)"),
       "top_k must be an integer between -1 and 2147483647, got number -2", "top_k", ""},
      {kChat, WithMessages(R"("top_k":1.5)"), "got number 1.5", "top_k", ""},
      {kChat, WithMessages(R"("frequency_penalty":3)"),
       "frequency_penalty must be a number between -2 and 2", "frequency_penalty", ""},
      {kChat, WithMessages(R"("repetition_penalty":0)"),
       "repetition_penalty must be a number above 0 and at most 2", "repetition_penalty", ""},
      {kChat, WithMessages(R"("seed":18446744073709551615)"), "seed must be an integer between",
       "seed", ""},
      {kChat, WithMessages(R"("seed":"1")"), "seed must be an integer between", "seed", ""},
      {kChat, WithMessages(R"("n":0)"), "n must be an integer between 1 and 128, got number 0", "n",
       ""},
      {kChat, WithMessages(R"("n":129)"), "got number 129", "n", ""},
      {kChat, WithMessages(R"("max_tokens":0)"),
       "max_tokens must be an integer between 1 and 2147483647, got number 0", "max_tokens", ""},
      {kChat, WithMessages(R"("max_tokens":99999999999)"), "got number 99999999999", "max_tokens",
       ""},
      {kChat, WithMessages(R"("max_completion_tokens":-1)"), "max_completion_tokens must be",
       "max_completion_tokens", ""},
      {kChat, WithMessages(R"("min_tokens":-1)"), "min_tokens must be", "min_tokens", ""},
      {kChat, WithMessages(R"("stop":5)"),
       "stop must be a string or a list of strings, got number 5", "stop", ""},
      {kChat, WithMessages(R"("stop":["a",1])"), "stop[1] must be a string, got number 1", "stop",
       ""},
      {kChat, WithMessages(R"("stop":"")"), "stop must have 1 to 1000 bytes, got 0", "stop", ""},
      {kChat, WithMessages(ManyStops(17)), "stop must have at most 16 strings, got 17", "stop", ""},
      {kChat, WithMessages(ManyStops(10000)), "stop must have at most 16 strings, got 10000",
       "stop", ""},
      {kChat, WithMessages(R"("stop":")" + std::string(1001, 'x') + "\""),
       "stop must have 1 to 1000 bytes, got 1001", "stop", ""},
      {kChat, WithMessages(R"("stop_token_ids":[300])"),
       "stop_token_ids[0] must be an integer between 0 and 299, got number 300", "stop_token_ids",
       ""},
      {kChat, WithMessages(R"("logit_bias":[1])"), "logit_bias must be an object", "logit_bias",
       ""},
      {kChat, WithMessages(R"("logit_bias":{"x":1})"),
       "token ids between 0 and 299 as keys, got \"x\"", "logit_bias", ""},
      {kChat, WithMessages(R"("logit_bias":{"300":1})"), "got \"300\"", "logit_bias", ""},
      {kChat, WithMessages(R"("logit_bias":{"1":101})"),
       "numbers between -100 and 100 as values, got number 101 for 1", "logit_bias", ""},
      {kChat, WithMessages(R"("logit_bias":{"1":1,"01":2})"), "has the token id 1 twice",
       "logit_bias", ""},
      {kChat, WithMessages(R"("logprobs":1)"), "logprobs must be true or false, got number 1",
       "logprobs", ""},
      {kChat, WithMessages(R"("top_logprobs":2)"),
       "top_logprobs is only allowed when logprobs is true", "top_logprobs", ""},
      {kChat, WithMessages(R"("logprobs":true,"top_logprobs":21)"),
       "top_logprobs must be an integer between 0 and 20", "top_logprobs", ""},
      {kChat, WithMessages(R"("stream":"yes")"), "stream must be true or false", "stream", ""},
      {kChat, WithMessages(R"("stream_options":{"include_usage":true})"),
       "stream_options is only allowed when stream is true", "stream_options", ""},
      {kChat, WithMessages(R"("stream":true,"stream_options":{"include_usage":1})"),
       "stream_options: include_usage must be true or false", "stream_options", ""},
      {kChat, WithMessages(R"("model":5)"), "model must be a string", "model", ""},
      {kChat, WithMessages(R"("rid":"")"), "rid must not be empty", "rid", ""},
      {kChat, WithMessages(R"("chat_template_kwargs":[])"),
       "chat_template_kwargs must be an object", "chat_template_kwargs", ""},
      {kChat, WithMessages(R"("chat_template_kwargs":{"messages":[]})"), "must not set messages",
       "chat_template_kwargs", ""},
      {kChat, WithMessages(R"("continue_final_message":true)"),
       "needs an assistant message at the end", "continue_final_message", ""},
      {kChat, WithMessages(R"("tools":[{"type":"function"}])"),
       "tools isn't available in this release", "tools", "unsupported_parameter"},
      {kChat, WithMessages(R"("tool_choice":"auto")"), "tool_choice isn't available", "tool_choice",
       "unsupported_parameter"},
      {kChat, WithMessages(R"("functions":[{}])"), "functions isn't available", "functions",
       "unsupported_parameter"},
      {kChat, WithMessages(R"("response_format":{"type":"json_object"})"),
       "response_format isn't available", "response_format", "unsupported_parameter"},
      {kChat, WithMessages(R"("response_format":"json")"),
       "response_format must be an object with a type", "response_format", ""},
      {kChat, WithMessages(R"("regex":"a+")"), "regex isn't available", "regex",
       "unsupported_parameter"},
      {kChat, WithMessages(R"("ebnf":"x")"), "ebnf isn't available", "ebnf",
       "unsupported_parameter"},
      {kChat, WithMessages(R"("lora_path":"x")"), "lora_path isn't available", "lora_path",
       "unsupported_parameter"},
      {kText, WithPrompt(R"("suffix":"x")"), "suffix isn't available", "suffix",
       "unsupported_parameter"},
      {kText, WithPrompt(R"("best_of":2)"), "best_of isn't available", "best_of",
       "unsupported_parameter"},
      {kText, "{}", "prompt must be a string or a list of token ids, got null", "prompt", ""},
      {kText, R"({"prompt":""})", "prompt must not be empty", "prompt", ""},
      {kText, R"({"prompt":[]})", "prompt must have 1 to 1024 entries, got 0", "prompt", ""},
      {kText, R"({"prompt":[1,"a"]})",
       "prompt[1] must be an integer between 0 and 299, got string \"a\"", "prompt", ""},
      {kText, R"({"prompt":[1,300]})",
       "prompt[1] must be an integer between 0 and 299, got number 300", "prompt", ""},
      {kText, R"({"prompt":[1,-1]})", "got number -1", "prompt", ""},
      {kText, R"({"prompt":["a",[]]})", "prompt[1] must have 1 to", "prompt", ""},
      {kText, R"({"prompt":["a",5]})",
       "prompt[1] must be a string or a list of token ids, got number 5", "prompt", ""},
      {kText, WithPrompt(R"("max_tokens":0)"), "max_tokens must be an integer between 1",
       "max_tokens", ""},
      {kText, WithPrompt(R"("logprobs":21)"), "logprobs must be an integer between 0 and 20",
       "logprobs", ""},
      {kText, WithPrompt(R"("logprobs":"5")"), "logprobs must be an integer between 0 and 20",
       "logprobs", ""},
      {kText, WithPrompt(R"("echo":1)"), "echo must be true or false", "echo", ""},
  };
  for (const BadRequest& c : kCases) {
    auto request = ParseRequest(c.endpoint, c.body, kFacts, {});
    SCOPED_TRACE(c.body.substr(0, 200));
    ASSERT_FALSE(request.ok());
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(request.status()), HasSubstr(c.message));
    EXPECT_EQ(ErrorParam(request.status()), c.param);
    EXPECT_EQ(ErrorCode(request.status()), c.code);
    EXPECT_LT(Message(request.status()).size(), 400u);
  }
}

TEST(RequestParserTest, HarmlessFormsOfUnsupportedFieldsAreAccepted) {
  for (const char* more :
       {R"(,"tools":[])", R"(,"tools":null)", R"(,"tool_choice":"none")",
        R"(,"response_format":{"type":"text"})", R"(,"best_of":1)", R"(,"suffix":"")",
        R"(,"stop":[])", R"(,"lora_path":null)", R"(,"no_stop_trim":false)"}) {
    EXPECT_TRUE(Chat(more).ok()) << more;
  }
}

TEST(RequestParserTest, ChoicesOfAllPromptsAreBounded) {
  std::string prompts = R"("a")";
  for (int i = 1; i < 20; ++i) prompts += R"(,"a")";
  auto request =
      ParseRequest(Endpoint::kCompletion, R"({"n":128,"prompt":[)" + prompts + "]}", kFacts, {});
  ASSERT_FALSE(request.ok());
  EXPECT_THAT(Message(request.status()), HasSubstr("at most 2048, got 128 x 20"));
}

TEST(RequestParserTest, TextThatLooksLikeNumbersInStringsIsLeftAlone) {
  auto request = ParseRequest(Endpoint::kCompletion,
                              R"({"prompt":"NaN \" Infinity","max_tokens":1})", kFacts, {});
  ASSERT_TRUE(request.ok());
  EXPECT_THAT(request->prompts, ElementsAre(Prompt("NaN \" Infinity")));
}

}  // namespace
}  // namespace kt::api
