// SPDX-License-Identifier: Apache-2.0
// Endpoints and their answers, over real sockets.
#include "coordinator/http/test_server.h"

namespace kt::http {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class HttpApiTest : public HttpTest {
 protected:
  RawResponse Get(const std::string& path, const std::string& more = "") {
    return GetOnce(port_, path, more);
  }
  RawResponse Post(const std::string& path, const std::string& body, const std::string& more = "") {
    return PostOnce(port_, path, body, more);
  }
  static Json Parse(const RawResponse& response) {
    return ParseJson(response.body).value_or(Json());
  }
  // The "data:" payloads of a stream.
  static std::vector<std::string> Events(const RawResponse& response) {
    std::vector<std::string> out;
    for (size_t at = 0; (at = response.body.find("data: ", at)) != std::string::npos;) {
      const size_t end = response.body.find("\n\n", at);
      out.push_back(response.body.substr(at + 6, end - at - 6));
      at = end;
    }
    return out;
  }
};

TEST_F(HttpApiTest, ModelsAreListed) {
  Start();
  RawResponse list = Get("/v1/models");
  EXPECT_EQ(list.Header("content-type"), "application/json");
  EXPECT_EQ(
      list.body,
      R"({"object":"list","data":[{"id":"org/m","object":"model","created":5,"owned_by":"kt","root":"org/m","parent":null,"max_model_len":100000}]})");
  EXPECT_EQ(Parse(Get("/v1/models/org/m"))["id"], "org/m");
  EXPECT_EQ(Parse(Get("/v1/models/org%2Fm"))["id"], "org/m");
  RawResponse unknown = Get("/v1/models/other");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(Parse(unknown)["error"]["code"], "model_not_found");
}

TEST_F(HttpApiTest, ChatWholeAndStreamSayTheSame) {
  Start();
  const std::string ask = R"({"messages":[{"role":"user","content":"h\u00e9!"}],"max_tokens":10)";
  RawResponse whole = Post("/v1/chat/completions", ask + "}");
  ASSERT_EQ(whole.status, 200) << whole.body;
  EXPECT_EQ(Parse(whole)["choices"][0]["message"]["content"], "[user]h\xC3\xA9!");
  EXPECT_EQ(Parse(whole)["usage"]["completion_tokens"], 10);
  RawResponse stream = Post("/v1/chat/completions",
                            ask + R"(,"stream":true,"stream_options":{"include_usage":true}})");
  EXPECT_THAT(stream.Header("content-type"), StartsWith("text/event-stream"));
  auto events = Events(stream);
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text;
  for (size_t i = 0; i + 2 < events.size(); ++i)
    text += ParseJson(events[i])->at("choices")[0]["delta"].value("content", "");
  EXPECT_EQ(text, "[user]h\xC3\xA9!");
  EXPECT_EQ(ParseJson(events[events.size() - 3])->at("choices")[0]["finish_reason"], "length");
  EXPECT_EQ(ParseJson(events[events.size() - 2])->at("usage")["total_tokens"], 20);
}

TEST_F(HttpApiTest, StopEndsTheAnswerAndIsCutOff) {
  Start();
  Json choice =
      Parse(Post("/v1/completions",
                 R"({"prompt":"abcdef","stop":["zz","de"],"max_tokens":50})"))["choices"][0];
  EXPECT_EQ(choice["text"], "abc");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["matched_stop"], "de");
}

TEST_F(HttpApiTest, ChoicesPromptsAndEcho) {
  Start();
  Json answer =
      Parse(Post("/v1/completions", R"({"prompt":["ab","cd"],"n":2,"max_tokens":2,"echo":true})"));
  std::vector<std::string> texts;
  for (const Json& choice : answer["choices"]) texts.push_back(choice["text"]);
  EXPECT_THAT(texts, ::testing::ElementsAre("abab", "abba", "cdcd", "cddc"));
  Json alone =
      Parse(Post("/v1/completions", R"({"prompt":"ab","max_tokens":0,"echo":true,"logprobs":1})"));
  EXPECT_EQ(alone["choices"][0]["text"], "ab");
  EXPECT_EQ(DumpJson(alone["choices"][0]["logprobs"]["token_logprobs"]), "[null,-0.25]");
  EXPECT_EQ(alone["usage"]["completion_tokens"], 0);
}

TEST_F(HttpApiTest, BadInputGetsItsErrorAndTheServerGoesOn) {
  Start();
  const std::string deep = R"({"messages":)" + std::string(200000, '[') + "}";
  std::string stops = R"({"prompt":"a","stop":["s")";
  for (int i = 1; i < 10000; ++i) stops += R"(,"s")";
  const std::pair<std::string, std::string> kCases[] = {
      {"{\"prompt\":\"\xff\xfe\"}", "invalid_json"},
      {deep, "invalid_json"},
      {stops + "]}", "invalid_value"},
      {R"({"prompt":"a","temperature":NaN})", "invalid_value"},
      {R"({"prompt":"a","tools":[1]})", "unsupported_parameter"},
      {"", "invalid_json"},
      {R"({"prompt":")" + std::string(100001, 'x') + "\"}", "context_length_exceeded"},
      {std::string(20 << 20, '['), "invalid_json"}};
  for (const auto& [body, code] : kCases) {
    RawResponse response = Post("/v1/completions", body);
    EXPECT_EQ(response.status, 400) << body.substr(0, 100);
    EXPECT_EQ(Parse(response)["error"]["code"], code) << body.substr(0, 100);
    EXPECT_EQ(Parse(response)["error"]["type"], "invalid_request_error");
  }
  EXPECT_EQ(Post("/v1/completions", R"({"prompt":"a"})").status, 200);
}

TEST_F(HttpApiTest, ErrorsInAStreamAreEvents) {
  Start({.fail_after_tokens = 2});
  auto events = Events(Post("/v1/completions", R"({"prompt":"abc","stream":true})"));
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(ParseJson(events[events.size() - 2])->at("error")["code"], "internal_error");
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Post("/v1/completions", R"({"prompt":"abc"})").status, 500);
}

TEST_F(HttpApiTest, AFullQueueSaysWhenToComeBack) {
  Start({.queue_max = 0});
  RawResponse response = Post("/v1/completions", R"({"prompt":"abc","stream":true})");
  EXPECT_EQ(response.status, 429);
  EXPECT_NE(response.Header("retry-after"), "");
  EXPECT_EQ(Parse(response)["error"]["code"], "queue_full");
}

TEST_F(HttpApiTest, HealthTellsStateAndReasons) {
  Start();
  RawResponse ready = Get("/health");
  EXPECT_EQ(ready.status, 200);
  EXPECT_EQ(ready.body, "");
  EXPECT_EQ(Parse(Get("/health?verbose=1"))["warnings"][0], "two workers on one node");
  EXPECT_EQ(Get("/health_generate").status, 200);
  status_.ready = false;
  RawResponse starting = Get("/health");
  EXPECT_EQ(starting.status, 503);
  EXPECT_EQ(Parse(starting)["reasons"][0], "weights are being read");
  EXPECT_EQ(Get("/health_generate").status, 503);
  RawResponse refused = Post("/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.Header("retry-after"), "");
}

TEST_F(HttpApiTest, TheKeyIsAskedForButNotByHealthAndMetrics) {
  Start({}, "secret");
  for (const char* more : {"", "authorization: Bearer wrong\r\n", "authorization: Bearer secre\r\n",
                           "authorization: Bearer secrett\r\n", "authorization: secret\r\n",
                           "authorization: Bearer \r\n"}) {
    RawResponse response = Get("/v1/models", more);
    EXPECT_EQ(response.status, 401) << more;
    EXPECT_EQ(Parse(response)["error"]["code"], "invalid_api_key");
    EXPECT_THAT(response.body, Not(HasSubstr("wrong\\r"))) << more;
  }
  EXPECT_EQ(Get("/v1/models", "authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_EQ(Get("/metrics").status, 200);
  EXPECT_EQ(Get("/no/such/path").status, 401);
  // An unauthorised body is not waited for.
  RawClient client(port_);
  client.Send("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n");
  EXPECT_EQ(client.Read().status, 401);
}

TEST_F(HttpApiTest, TokenizeAndDetokenizeAreInverse) {
  Start();
  EXPECT_EQ(Post("/tokenize", R"({"prompt":"a<|end|>"})").body,
            R"({"tokens":[97,256],"count":2,"max_model_len":100000})");
  EXPECT_EQ(Post("/v1/tokenize", R"({"prompt":["a","bc"]})").body,
            R"({"tokens":[[97],[98,99]],"count":[1,2],"max_model_len":100000})");
  EXPECT_EQ(Post("/tokenize", R"({"prompt":""})").body,
            R"({"tokens":[],"count":0,"max_model_len":100000})");
  EXPECT_THAT(Post("/tokenize", R"({"messages":[{"role":"user","content":"x"}]})").body,
              HasSubstr("\"count\":7"));
  EXPECT_EQ(Post("/tokenize", R"({"prompt":[1]})").status, 400);
  EXPECT_EQ(Post("/tokenize", "{}").status, 400);
  EXPECT_EQ(Post("/detokenize", R"({"tokens":[97,256]})").body, R"({"text":"a"})");
  EXPECT_EQ(Post("/v1/detokenize", R"({"tokens":[97,256],"skip_special_tokens":false})").body,
            R"({"text":"a<|end|>"})");
  EXPECT_EQ(Post("/detokenize", R"({"tokens":[[97],[98]]})").body, R"({"text":["a","b"]})");
  EXPECT_EQ(Post("/detokenize", R"({"tokens":[257]})").status, 400);
}

TEST_F(HttpApiTest, AbortEndsARunningRequest) {
  Start({.step = std::chrono::milliseconds(1)});
  RawClient client(port_);
  client.Post("/v1/completions",
              R"({"prompt":"abc","max_tokens":90000,"stream":true,"rid":"mine"})");
  ASSERT_TRUE(client.ReadUntil("data: "));
  EXPECT_EQ(Post("/abort_request", R"({"rid":"other"})").status, 404);
  EXPECT_EQ(Post("/abort_request", "{}").status, 400);
  EXPECT_EQ(Post("/abort_request", R"({"rid":"mine"})").status, 200);
  ASSERT_TRUE(client.ReadUntil("[DONE]"));
  EXPECT_THAT(client.buffer(), HasSubstr("\"finish_reason\":\"abort\""));
  EXPECT_TRUE(generator_->WaitFor(0, 1));
  EXPECT_EQ(Post("/abort_request", R"({"abort_all":true})").status, 200);
}

TEST_F(HttpApiTest, TheCacheIsFlushedWhileRequestsRun) {
  Start({.step = std::chrono::milliseconds(1)});
  RawClient client(port_);
  client.Post("/v1/completions", R"({"prompt":"abc","max_tokens":90000,"stream":true})");
  ASSERT_TRUE(client.ReadUntil("data: "));
  for (const RawResponse& response : {Get("/flush_cache"), Post("/flush_cache", "")}) {
    EXPECT_EQ(response.status, 200);
    EXPECT_THAT(response.body, StartsWith("Cache flushed."));
  }
  EXPECT_EQ(generator_->flushes(), 2);
  EXPECT_EQ(generator_->live(), 1);
}

TEST_F(HttpApiTest, UsageSaysHowMuchOfThePromptsWasCached) {
  Start({.cached_tokens = 2});
  const std::string ask = R"({"prompt":["abc","defg"],"n":2,"max_tokens":3)";
  const auto cached = [](const Json& answer) {
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"];
  };
  EXPECT_EQ(cached(Parse(Post("/v1/completions", ask + "}"))), 4);
  auto events = Events(
      Post("/v1/completions", ask + R"(,"stream":true,"stream_options":{"include_usage":true}})"));
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(cached(*ParseJson(events[events.size() - 2])), 4);
}

TEST_F(HttpApiTest, InformationEndpoints) {
  Start();
  EXPECT_EQ(Parse(Get("/model_info"))["is_generation"], true);
  EXPECT_EQ(Parse(Get("/get_model_info"))["model_path"], "fake");
  EXPECT_EQ(Parse(Get("/server_info"))["version"], "0");
  EXPECT_EQ(Parse(Get("/get_server_info"))["version"], "0");
  RawResponse metrics = Get("/metrics");
  EXPECT_THAT(metrics.Header("content-type"), StartsWith("text/plain; version=0.0.4"));
  EXPECT_THAT(metrics.body, HasSubstr("kt:http_connections{model_name=\"m\"}"));
}

TEST_F(HttpApiTest, ExpertDistributionIsRecordedOnRequest) {
  Start();
  EXPECT_EQ(Get("/dump_expert_distribution_record").status, 400);
  EXPECT_EQ(Post("/start_expert_distribution_record", "").status, 200);
  EXPECT_TRUE(recorder_.recording);
  EXPECT_THAT(Post("/dump_expert_distribution_record", "").body, HasSubstr(" /records/1.json\n"));
  EXPECT_EQ(Get("/stop_expert_distribution_record").status, 200);
  EXPECT_FALSE(recorder_.recording);
}

TEST_F(HttpApiTest, TheRequestIdIsEchoedOrDrawn) {
  Start();
  EXPECT_EQ(Get("/health", "x-request-id: abc-1\r\n").Header("x-request-id"), "abc-1");
  EXPECT_THAT(Get("/health").Header("x-request-id"), StartsWith("req-"));
  EXPECT_THAT(
      Get("/health", "x-request-id: " + std::string(200, 'x') + "\r\n").Header("x-request-id"),
      StartsWith("req-"));
}

}  // namespace
}  // namespace kt::http
