// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/generation_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "coordinator/api/api_error.h"
#include "coordinator/api/request_parser.h"
#include "tests/testing/fake_generation.h"

namespace kt::api {
namespace {

using ::testing::HasSubstr;

// A carrier with a thread of its own that collects what it is told.
class CollectingClient : public CallClient {
 public:
  CollectingClient() : thread_([this] { Loop(); }) {}
  ~CollectingClient() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void Post(std::function<void()> task) override {
    {
      std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }
  void OnPrepared(std::shared_ptr<const PreparedCall>) override { ++prepared; }
  void OnEvent(int, GenerationEvent event) override {
    ASSERT_EQ(prepared, 1);
    text += event.text;
    if (event.finish_reason != FinishReason::kNone) reasons.push_back(event.finish_reason);
    if (on_event) on_event();
  }
  void OnEnd(absl::Status status) override { end.set_value(std::move(status)); }

  // Runs `task` on the thread and waits for it, so that all before it is done.
  void Sync(std::function<void()> task = [] {}) {
    std::promise<void> done;
    Post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }

  int prepared = 0;
  std::string text;
  std::vector<FinishReason> reasons;
  std::function<void()> on_event;
  std::promise<absl::Status> end;

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

class GenerationServiceTest : public ::testing::Test {
 protected:
  void Start(testing::FakeGenerator::Options options = {},
             GenerationService::Options service_options = {}) {
    service_.reset();
    generator_ = std::make_unique<testing::FakeGenerator>(&tokenizer_, options);
    service_ = std::make_unique<GenerationService>(
        ModelFacts{.name = "m", .context_length = 1000, .vocab_size = 257}, ApiDefaults{},
        &tokenizer_, &renderer_, generator_.get(), &status_, &metrics_, service_options);
  }

  std::shared_ptr<GenerationCall> Submit(CollectingClient& client, const std::string& body) {
    // The test owns the client and outlives the call.
    return service_->Start(
        [this, body] { return ParseRequest(Endpoint::kCompletion, body, service_->facts(), {}); },
        std::shared_ptr<CallClient>(std::shared_ptr<void>(), &client));
  }

  testing::FakeTokenizer tokenizer_;
  testing::FakeRenderer renderer_;
  testing::FakeStatus status_;
  metrics::Metrics metrics_{"m"};
  std::unique_ptr<testing::FakeGenerator> generator_;
  std::unique_ptr<GenerationService> service_;
};

TEST_F(GenerationServiceTest, ACallEndsOnceAllItsChoicesHave) {
  Start();
  CollectingClient client;
  Submit(client, R"({"prompt":["abc","d"],"n":2,"max_tokens":3})");
  EXPECT_TRUE(client.end.get_future().get().ok());
  EXPECT_EQ(client.reasons.size(), 4u);
  EXPECT_EQ(client.text.size(), 12u);
  EXPECT_EQ(service_->live_calls(), 0);
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("kt:generation_tokens_total{model_name=\"m\"} 12"));
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("kt:prompt_tokens_total{model_name=\"m\"} 4"));
  EXPECT_THAT(metrics_.Serialize(),
              HasSubstr("kt:time_to_first_token_seconds_count{model_name=\"m\"} 4"));
}

TEST_F(GenerationServiceTest, EveryFailureArrivesAsTheEnd) {
  Start({.queue_max = 1});
  status_.ready = false;
  CollectingClient not_ready, bad, full;
  Submit(not_ready, R"({"prompt":"a"})");
  EXPECT_TRUE(absl::IsUnavailable(not_ready.end.get_future().get()));
  status_.ready = true;
  Submit(bad, R"({"prompt":5})");
  EXPECT_TRUE(absl::IsInvalidArgument(bad.end.get_future().get()));
  generator_->Hold(true);
  Submit(full,
         R"({"prompt":["a","b"]})");  // the second prompt finds no place: the first is cancelled
  EXPECT_TRUE(absl::IsResourceExhausted(full.end.get_future().get()));
  EXPECT_TRUE(generator_->WaitFor(0, 1));
  EXPECT_EQ(service_->live_calls(), 0);
}

TEST_F(GenerationServiceTest, AGeneratorsErrorEndsTheCall) {
  Start({.fail_after_tokens = 2});
  CollectingClient client;
  Submit(client, R"({"prompt":"abc"})");
  EXPECT_TRUE(absl::IsInternal(client.end.get_future().get()));
  EXPECT_EQ(client.text, "ab");
}

TEST_F(GenerationServiceTest, CancelWhileQueuedFreesTheRequest) {
  Start();
  generator_->Hold(true);
  CollectingClient client;
  auto call = Submit(client, R"({"prompt":"abc"})");
  ASSERT_TRUE(generator_->WaitFor(1, 0));
  call->Cancel();
  EXPECT_TRUE(generator_->WaitFor(0, 1));
  EXPECT_EQ(service_->live_calls(), 0);
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("kt:client_disconnects_total{model_name=\"m\"} 1"));
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("kt:num_live_reqs{model_name=\"m\"} 0"));
  client.Sync();
  EXPECT_EQ(client.end.get_future().wait_for(std::chrono::seconds(0)),
            std::future_status::timeout);  // told nothing more
}

TEST_F(GenerationServiceTest, CancelFromWithinAnEventStopsTheEvents) {
  Start();
  CollectingClient client;
  std::shared_ptr<GenerationCall> call;
  std::promise<void> call_set, cancelled;
  client.Post([&] { call_set.get_future().wait(); });
  client.on_event = [&] {
    call->Cancel();
    cancelled.set_value();
  };  // a second event would throw
  call = Submit(client, R"({"prompt":"abc","max_tokens":500})");
  call_set.set_value();
  cancelled.get_future().wait();
  client.Sync();
  EXPECT_EQ(service_->live_calls(), 0);
}

TEST_F(GenerationServiceTest, CancelBeforePreparationNeverSubmits) {
  Start({}, {.threads = 1});
  std::promise<void> release;
  ASSERT_TRUE(service_->Run([&] { release.get_future().wait(); }).ok());
  CollectingClient client;
  auto call = Submit(client, R"({"prompt":"abc"})");
  call->Cancel();
  release.set_value();
  std::promise<void> done;
  ASSERT_TRUE(service_->Run([&] { done.set_value(); }).ok());
  done.get_future().wait();
  EXPECT_EQ(generator_->steps(), 0);
  EXPECT_EQ(generator_->live(), 0);
}

TEST_F(GenerationServiceTest, AFullPreparationQueueIsOverload) {
  Start({}, {.threads = 1, .queue_max = 1});
  // The job outlives the test's scope.
  auto release = std::make_shared<std::promise<void>>(),
       started = std::make_shared<std::promise<void>>();
  ASSERT_TRUE(service_
                  ->Run([=] {
                    started->set_value();
                    release->get_future().wait();
                  })
                  .ok());
  started->get_future().wait();
  ASSERT_TRUE(service_->Run([] {}).ok());
  absl::Status status = service_->Run([] {});
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(ErrorCode(status), "overloaded");
  release->set_value();
}

TEST_F(GenerationServiceTest, AbortFinishesTheOpenChoices) {
  Start({.step = std::chrono::milliseconds(1)});
  CollectingClient client;
  Submit(client, R"({"prompt":"abc","n":2,"max_tokens":900,"rid":"r"})");
  ASSERT_TRUE(generator_->WaitFor(1, 0));
  EXPECT_TRUE(absl::IsNotFound(service_->Abort("other")));
  CollectingClient twin;
  Submit(twin, R"({"prompt":"abc","rid":"r"})");
  EXPECT_TRUE(absl::IsAlreadyExists(twin.end.get_future().get()));
  EXPECT_TRUE(service_->Abort("r").ok());
  EXPECT_TRUE(client.end.get_future().get().ok());
  EXPECT_THAT(client.reasons, ::testing::ElementsAre(FinishReason::kAbort, FinishReason::kAbort));
  EXPECT_TRUE(generator_->WaitFor(0, 1));
}

TEST_F(GenerationServiceTest, ManyCancelsLeaveNothing) {
  Start({.step = std::chrono::microseconds(50)});
  std::vector<std::unique_ptr<CollectingClient>> clients;
  for (int i = 0; i < 50; ++i) {
    clients.push_back(std::make_unique<CollectingClient>());
    auto call = Submit(*clients.back(), R"({"prompt":["abc","def"],"n":2,"max_tokens":900})");
    for (int k = 0; k < (i % 3) * 300; ++k) std::this_thread::yield();
    call->Cancel();
  }
  std::promise<void> one, two, done;  // both workers have come to the end of the queue
  ASSERT_TRUE(service_
                  ->Run([&] {
                    one.set_value();
                    two.get_future().wait();
                    done.set_value();
                  })
                  .ok());
  ASSERT_TRUE(service_
                  ->Run([&] {
                    one.get_future().wait();
                    two.set_value();
                  })
                  .ok());
  done.get_future().wait();  // the service drops jobs that still wait when it ends
  service_.reset();
  EXPECT_EQ(generator_->live(), 0);
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("kt:num_live_reqs{model_name=\"m\"} 0"));
}

}  // namespace
}  // namespace kt::api
