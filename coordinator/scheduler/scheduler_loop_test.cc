// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/scheduler_loop.h"

#include <gtest/gtest.h>

#include <atomic>

#include "common/base/status.h"
#include "coordinator/scheduler/testing/fake_tokenizer.h"
#include "coordinator/scheduler/testing/sim_worker.h"
#include "coordinator/scheduler/testing/test_client.h"

namespace kt {
namespace {

using testing::FakeTokenizer;
using testing::SimWorker;
using testing::TestClient;

constexpr int kBlocks = 24, kBlockTokens = 4, kStepTokens = 16;
constexpr Duration kLong = std::chrono::seconds(60);

// Runs plans on a thread of its own, as a worker's stream does.
class ThreadedTransport final : public StepTransport {
 public:
  ThreadedTransport() : thread_([this] { Run(); }) {}
  ~ThreadedTransport() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  // Plans that arrive before are lost.
  void Attach(SchedulerLoop* loop) {
    std::lock_guard lock(mutex_);
    loop_ = loop;
    worker_ = std::make_unique<SimWorker>(kBlocks, kBlockTokens, kStepTokens);
    plan_.reset();
    // Posted with the lock held: a plan for the new worker cannot overtake this.
    loop->PostWorkersReady(kBlocks, kStepTokens);
  }
  void Lose() {
    std::lock_guard lock(mutex_);
    worker_.reset();
    loop_->PostWorkersLost("killed");
  }
  void Send(const proto::StepPlan& plan) override {
    {
      std::lock_guard lock(mutex_);
      plan_ = plan;
    }
    wake_.notify_one();
  }
  std::vector<std::string> breaches() {
    std::lock_guard lock(mutex_);
    return breaches_;
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || plan_.has_value(); });
      if (stopping_) return;
      const proto::StepPlan plan = *std::exchange(plan_, std::nullopt);
      if (worker_ == nullptr) continue;
      proto::StepResult result = worker_->Run(plan);
      breaches_.insert(breaches_.end(), worker_->breaches().begin(), worker_->breaches().end());
      loop_->PostResult(std::move(result));
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<proto::StepPlan> plan_;
  std::unique_ptr<SimWorker> worker_;
  SchedulerLoop* loop_ = nullptr;
  std::vector<std::string> breaches_;
  bool stopping_ = false;
  std::thread thread_;
};

class NoTransport final : public StepTransport {
 public:
  void Send(const proto::StepPlan&) override { ++sent; }
  std::atomic<int> sent = 0;
};

class SchedulerLoopTest : public ::testing::Test {
 protected:
  std::unique_ptr<Scheduler> NewScheduler() {
    SchedulerConfig config;
    proto::SchedulerOptions& o = config.options;
    o.set_chunked_prefill_size(8);
    o.set_max_prefill_tokens(-1);
    o.set_max_running_requests(6);
    o.set_max_queued_requests(1000);
    o.set_block_tokens(kBlockTokens);
    o.set_stream_interval(1);
    o.set_enable_mixed_chunk(true);
    config.queue_timeout = queue_timeout_;
    config.lost_steps_max = 1000;
    config.eos_token_ids = {FakeTokenizer::kEos};
    auto scheduler = Scheduler::Create(config, &tokenizer_);
    EXPECT_TRUE(scheduler.ok()) << scheduler.status();
    return *std::move(scheduler);
  }
  static GenerationRequest Request(const std::string& id, int prompt, int max_new_tokens) {
    GenerationRequest r;
    r.id = id;
    for (int i = 0; i < prompt; ++i) r.prompt_ids.push_back(1 + (i * 5 + prompt) % 31);
    r.max_new_tokens = max_new_tokens;
    r.sampling.seed = 5;
    return r;
  }

  FakeTokenizer tokenizer_;
  SteadyClock clock_;
  Duration queue_timeout_ = std::chrono::minutes(10);
};

TEST_F(SchedulerLoopTest, ManyClientsAndLostWorkers) {
  constexpr int kClients = 6, kRequests = 12;
  struct Entry {
    GenerationRequest request;
    std::shared_ptr<TestClient> client;
    bool cancelled;
  };
  std::vector<std::vector<Entry>> entries(kClients);
  ThreadedTransport transport;
  SchedulerLoop loop(NewScheduler(), &transport, &clock_);
  transport.Attach(&loop);
  // The Ready mail is before every Submit in the mailbox.
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < kRequests; ++i) {
        GenerationRequest request =
            Request(fmt::format("{}-{}", c, i), 1 + (c * 7 + i * 3) % 30, 1 + (c + i * 5) % 20);
        request.n = 1 + i % 2;
        auto client = std::make_shared<TestClient>(request.n);
        const absl::Status status = loop.Submit(request, client);
        ASSERT_TRUE(status.ok()) << status;
        const bool cancelled = i % 5 == 4;
        if (cancelled) loop.Cancel(request.id);
        entries[c].push_back({std::move(request), std::move(client), cancelled});
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    transport.Lose();
    (void)loop.stats();
    transport.Attach(&loop);
  }
  for (std::thread& t : clients) t.join();
  ASSERT_TRUE(loop.WaitIdle(kLong));
  EXPECT_EQ(transport.breaches(), std::vector<std::string>());
  const SchedulerStats stats = loop.stats();
  EXPECT_EQ(stats.requests_accepted, uint64_t{kClients} * kRequests);
  EXPECT_EQ(stats.requests_failed, 0u);
  EXPECT_EQ(stats.blocks_used, 0);
  for (const auto& of_client : entries) {
    for (const Entry& e : of_client) {
      EXPECT_EQ(e.client->Compare(e.request, 5), "");
      EXPECT_TRUE(e.client->ended() || e.cancelled);
    }
  }
}

TEST_F(SchedulerLoopTest, SubmitAnswersWhileAStepRuns) {
  NoTransport transport;
  SchedulerLoop loop(NewScheduler(), &transport, &clock_);
  EXPECT_TRUE(
      absl::IsUnavailable(loop.Submit(Request("early", 1, 1), std::make_shared<TestClient>(1))));
  loop.PostWorkersReady(kBlocks, kStepTokens);
  EXPECT_TRUE(loop.Submit(Request("a", 1, 1), std::make_shared<TestClient>(1)).ok());
  EXPECT_TRUE(loop.Submit(Request("b", 1, 1), std::make_shared<TestClient>(1)).ok());
  EXPECT_TRUE(
      absl::IsInvalidArgument(loop.Submit(Request("c", 1000, 1), std::make_shared<TestClient>(1))));
  loop.Drain();
  EXPECT_TRUE(
      absl::IsUnavailable(loop.Submit(Request("d", 1, 1), std::make_shared<TestClient>(1))));
  EXPECT_EQ(transport.sent, 1);
  EXPECT_FALSE(loop.WaitIdle(Duration::zero()));
  loop.Cancel("a");
  loop.Cancel("b");
  EXPECT_FALSE(loop.WaitIdle(Duration::zero())) << "the step in flight still uses the blocks";
  loop.PostWorkersLost("killed");
  EXPECT_TRUE(loop.WaitIdle(kLong));
  EXPECT_EQ(loop.stats().blocks_used, 0);
}

TEST_F(SchedulerLoopTest, TheEndOfTheLoopEndsItsRequests) {
  NoTransport transport;
  auto client = std::make_shared<TestClient>(1);
  {
    SchedulerLoop loop(NewScheduler(), &transport, &clock_);
    loop.PostWorkersReady(kBlocks, kStepTokens);
    ASSERT_TRUE(loop.Submit(Request("a", 1, 1), client).ok());
  }
  EXPECT_TRUE(absl::IsUnavailable(client->error));
  EXPECT_EQ(client.use_count(), 1);
}

TEST_F(SchedulerLoopTest, TimersWakeTheLoop) {
  queue_timeout_ = std::chrono::milliseconds(1);
  NoTransport transport;
  SchedulerLoop loop(NewScheduler(), &transport, &clock_);
  loop.PostWorkersReady(kBlocks, kStepTokens);
  loop.PostWorkersLost("killed");
  auto client = std::make_shared<TestClient>(1);
  ASSERT_TRUE(loop.Submit(Request("a", 1, 1), client).ok());
  ASSERT_TRUE(loop.WaitIdle(kLong));
  EXPECT_TRUE(absl::IsUnavailable(client->error));
}

}  // namespace
}  // namespace kt
