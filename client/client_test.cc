// SPDX-License-Identifier: Apache-2.0
// The client against the real gRPC server, before the fakes.
#include "client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <thread>
#include <utility>

#include "common/base/status.h"
#include "coordinator/grpc_api/grpc_server.h"
#include "tests/testing/fake_generation.h"

namespace kt::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ClientTest : public ::testing::Test {
 protected:
  ~ClientTest() override {
    client_.reset();
    server_.reset();
    unlink(socket_.c_str());
  }

  void Start(kt::testing::FakeGenerator::Options generator = {},
             grpc_api::GrpcServerOptions options = {}) {
    generator_ = std::make_unique<kt::testing::FakeGenerator>(&tokenizer_, generator);
    service_ = std::make_unique<api::GenerationService>(
        api::ModelFacts{.name = "m", .context_length = 100000, .vocab_size = 257},
        api::ApiDefaults{}, &tokenizer_, &renderer_, generator_.get(), &status_, &metrics_,
        api::GenerationService::Options{});
    options.addresses = {"unix:" + socket_, "127.0.0.1:0"};
    auto server = grpc_api::GrpcServer::Start(options, service_.get());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = std::make_unique<Client>(
        ClientOptions{.target = "unix:" + socket_, .api_key = options.api_key});
  }

  static api::GenerateRequest Prompt(const std::string& text, int max_tokens) {
    api::GenerateRequest request;
    request.set_prompt(text);
    request.set_max_tokens(max_tokens);
    return request;
  }

  absl::Status Run(const api::GenerateRequest& request) {
    events_.clear();
    return client_->Generate(request, [this](const api::GenerateEvent& event) {
      events_.push_back(event);
      return true;
    });
  }
  std::string Text(int choice = 0) const {
    std::string text;
    for (const auto& event : events_) text += event.choice() == choice ? event.text() : "";
    return text;
  }

  const std::string socket_ = fmt::format("/tmp/kt-client-test-{}.sock", getpid());
  kt::testing::FakeTokenizer tokenizer_;
  kt::testing::FakeRenderer renderer_;
  kt::testing::FakeStatus status_;
  metrics::Metrics metrics_{"m"};
  std::unique_ptr<kt::testing::FakeGenerator> generator_;
  std::unique_ptr<api::GenerationService> service_;
  std::unique_ptr<grpc_api::GrpcServer> server_;
  std::unique_ptr<Client> client_;
  std::vector<api::GenerateEvent> events_;
};

TEST_F(ClientTest, ChatStreamsEventsAndEndsWithUsage) {
  Start({.cached_tokens = 4});
  api::GenerateRequest request;
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("h\xC3\xA9");
  request.set_max_tokens(9);
  request.set_n(2);
  request.set_logprobs(true);
  request.set_top_logprobs(1);
  ASSERT_TRUE(Run(request).ok());
  EXPECT_EQ(Text(0), "[user]h\xC3\xA9");
  EXPECT_EQ(Text(1), "user]h\xC3\xA9[");
  const api::GenerateEvent& last = events_.back();
  EXPECT_EQ(last.finish_reason(), "length");
  EXPECT_EQ(last.usage().prompt_tokens(), 9);
  EXPECT_EQ(last.usage().completion_tokens(), 18);
  EXPECT_EQ(last.usage().cached_tokens(), 4);
  EXPECT_EQ(events_[0].logprobs(0).token(), "[");
  EXPECT_EQ(events_[0].logprobs(0).top_logprobs_size(), 1);
  EXPECT_FALSE(last.request_id().empty());
}

TEST_F(ClientTest, EverySamplingFieldArrives) {
  Start();
  api::GenerateRequest request;
  for (int32_t id : {97, 98}) request.mutable_tokens()->add_ids(id);
  request.set_max_tokens(2);
  request.set_temperature(0.7f);
  request.set_top_p(0.9f);
  request.set_top_k(5);
  request.set_min_p(0.1f);
  request.set_presence_penalty(1);
  request.set_frequency_penalty(-1);
  request.set_repetition_penalty(1.1f);
  request.set_seed(-2);
  request.add_stop("zz");
  (*request.mutable_logit_bias())[3] = 1.5f;
  request.set_ignore_eos(true);
  request.set_request_id("mine");
  ASSERT_TRUE(Run(request).ok());
  const GenerationRequest seen = generator_->last_request();
  EXPECT_EQ(seen.id, "mine");
  EXPECT_THAT(seen.prompt_ids, ElementsAre(97, 98));
  EXPECT_EQ(seen.sampling.temperature, 0.7f);
  EXPECT_EQ(seen.sampling.top_p, 0.9f);
  EXPECT_EQ(seen.sampling.top_k, 5);
  EXPECT_EQ(seen.sampling.min_p, 0.1f);
  EXPECT_EQ(seen.sampling.presence_penalty, 1);
  EXPECT_EQ(seen.sampling.frequency_penalty, -1);
  EXPECT_EQ(seen.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(seen.sampling.seed, static_cast<uint64_t>(-2));
  EXPECT_THAT(seen.stop, ElementsAre("zz"));
  EXPECT_THAT(seen.sampling.logit_bias, ElementsAre(std::pair(3, 1.5f)));
  EXPECT_TRUE(seen.ignore_eos);
}

TEST_F(ClientTest, EchoBeginsWithThePrompt) {
  Start();
  api::GenerateRequest request = Prompt("ab", 1);
  request.set_echo(true);
  request.set_logprobs(true);
  ASSERT_TRUE(Run(request).ok());
  EXPECT_EQ(Text(), "aba");
  EXPECT_THAT(events_[0].token_ids(), ElementsAre(97, 98, 97));
  EXPECT_EQ(events_[0].logprobs_size(), 3);
  EXPECT_EQ(events_[0].logprobs(1).logprob(), -0.25f);
}

TEST_F(ClientTest, ErrorsAreThoseOfHttp) {
  Start({.queue_max = 0});
  EXPECT_THAT(Message(Run(api::GenerateRequest())),
              HasSubstr("input must be chat, prompt or tokens, got nothing"));
  api::GenerateRequest request = Prompt("a", 1);
  request.set_temperature(2.4f);
  absl::Status status = Run(request);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(Message(status), "temperature must be a number between 0 and 2, got number 2.4");
  request.set_temperature(NAN);
  EXPECT_EQ(Message(Run(request)),
            "temperature must be a number between 0 and 2, got string \"nan\"");
  EXPECT_TRUE(absl::IsResourceExhausted(Run(Prompt("a", 1))));
  EXPECT_THAT(Message(Run(Prompt(std::string(100001, 'x'), 1))), HasSubstr("100001 tokens"));
  status_.ready = false;
  EXPECT_TRUE(absl::IsUnavailable(Run(Prompt("a", 1))));
}

TEST_F(ClientTest, AnOversizedMessageIsRefused) {
  Start({}, {.message_bytes_max = 1000});
  EXPECT_TRUE(absl::IsResourceExhausted(Run(Prompt(std::string(5000, 'x'), 1))));
  EXPECT_TRUE(Run(Prompt("a", 1)).ok());
}

TEST_F(ClientTest, CancellingEndsTheWork) {
  Start({.step = std::chrono::microseconds(100)});
  int events = 0;
  absl::Status status = client_->Generate(Prompt("abc", 90000),
                                          [&](const api::GenerateEvent&) { return ++events < 3; });
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(events, 3);
  EXPECT_TRUE(generator_->WaitFor(0, 1));
  Cancellation cancellation;
  generator_->Hold(true);
  std::thread canceller([&] {
    EXPECT_TRUE(generator_->WaitFor(1, 1));
    cancellation.Cancel();
  });
  EXPECT_TRUE(absl::IsCancelled(client_->Generate(
      Prompt("abc", 90000), [](const api::GenerateEvent&) { return true; }, &cancellation)));
  canceller.join();
  EXPECT_TRUE(generator_->WaitFor(0, 2));
  EXPECT_EQ(service_->live_calls(), 0);
}

TEST_F(ClientTest, ASlowReaderIsEnded) {
  Start({.step = std::chrono::microseconds(50)}, {.stream_buffer_bytes_max = 10000});
  bool first = true;
  api::GenerateRequest request = Prompt("abc", 90000);
  request.set_logprobs(true);
  request.set_top_logprobs(20);
  absl::Status status = client_->Generate(request, [&](const api::GenerateEvent&) {
    if (std::exchange(first, false)) {
      EXPECT_TRUE(generator_->WaitFor(0, 1));  // reads nothing until the server has given up
    }
    return true;
  });
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST_F(ClientTest, TheKeyIsChecked) {
  Start({}, {.api_key = "secret"});
  EXPECT_TRUE(Run(Prompt("a", 1)).ok());
  EXPECT_EQ(client_->ListModels()->ids(0), "m");
  Client other({.target = fmt::format("127.0.0.1:{}", server_->port(1)), .api_key = "wrong"});
  EXPECT_TRUE(absl::IsUnauthenticated(other.ListModels().status()));
  EXPECT_TRUE(absl::IsUnauthenticated(
      other.Generate(Prompt("a", 1), [](const api::GenerateEvent&) { return true; })));
}

TEST_F(ClientTest, ManyCallsRunSideBySide) {
  Start({.step = std::chrono::microseconds(100)});
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this, i] {
      std::string text;
      const std::string prompt(1, static_cast<char>('a' + i));
      EXPECT_TRUE(client_
                      ->Generate(Prompt(prompt, 50),
                                 [&](const api::GenerateEvent& event) {
                                   text += event.text();
                                   return true;
                                 })
                      .ok());
      EXPECT_EQ(text, std::string(50, prompt[0]));
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(ClientTest, StoppingTheServerEndsCallsAndNoServerIsUnavailable) {
  Start();
  generator_->Hold(true);
  std::thread stopper([&] {
    EXPECT_TRUE(generator_->WaitFor(1, 0));
    server_->Drain(std::chrono::milliseconds(50));
  });
  EXPECT_FALSE(Run(Prompt("abc", 10)).ok());
  stopper.join();
  EXPECT_TRUE(generator_->WaitFor(0, 1));
  Client nobody({.target = "unix:/tmp/kt-client-test-none.sock",
                 .connect_timeout = std::chrono::milliseconds(100)});
  EXPECT_TRUE(absl::IsUnavailable(nobody.ListModels().status()));
}

TEST_F(ClientTest, ABusyAddressIsNamed) {
  Start();
  const std::string address = fmt::format("127.0.0.1:{}", server_->port(1));
  absl::Status status =
      grpc_api::GrpcServer::Start({.addresses = {address}}, service_.get()).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status));
  EXPECT_THAT(Message(status), HasSubstr(address));
}

}  // namespace
}  // namespace kt::client
