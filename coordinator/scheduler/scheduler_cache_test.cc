// SPDX-License-Identifier: Apache-2.0
// The scheduler with its prefix cache on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "common/sim/rng.h"
#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/testing/fake_tokenizer.h"
#include "coordinator/scheduler/testing/sim_worker.h"
#include "coordinator/scheduler/testing/test_client.h"

namespace kt {
namespace {

using testing::FakeTokenizer;
using testing::SimWorker;
using testing::TestClient;
using Tokens = std::vector<int32_t>;

constexpr int kBlockTokens = 4;
constexpr uint64_t kSeed = 11;

// The parameter: state slots of the model, 0 for one without.
class SchedulerCacheTest : public ::testing::TestWithParam<int> {
 protected:
  SchedulerCacheTest() {
    proto::SchedulerOptions& o = config_.options;
    o.set_chunked_prefill_size(8);
    o.set_max_prefill_tokens(-1);
    o.set_max_running_requests(8);
    o.set_max_queued_requests(64);
    o.set_block_tokens(kBlockTokens);
    o.set_stream_interval(1);
    o.set_enable_mixed_chunk(true);
    o.set_prefix_cache(true);
    config_.eos_token_ids = {FakeTokenizer::kEos};
    config_.state_slots = GetParam();
  }

  void Start(int kv_blocks = 256) {
    scheduler_ = *Scheduler::Create(config_, &tokenizer_);
    Ready(kv_blocks);
  }
  void Ready(int kv_blocks = 256) {
    worker_ = std::make_unique<SimWorker>(kv_blocks, kBlockTokens, 32, config_.state_slots);
    scheduler_->OnWorkersReady(kv_blocks, 32, clock_.Now());
  }
  Tokens Draw(int count) {
    Tokens tokens;
    for (; count > 0; --count)
      tokens.push_back(static_cast<int32_t>(rng_.Between(1, FakeTokenizer::kVocab - 1)));
    return tokens;
  }
  GenerationRequest Request(Tokens prompt, int max_new_tokens) {
    GenerationRequest r;
    r.id = fmt::format("r{}", next_id_++);
    r.prompt_ids = std::move(prompt);
    r.max_new_tokens = max_new_tokens;
    r.sampling.seed = kSeed;
    r.ignore_eos = true;
    return r;
  }
  std::shared_ptr<TestClient> Add(const GenerationRequest& request) {
    auto client = std::make_shared<TestClient>(request.n);
    const absl::Status status = scheduler_->Add(request, client, clock_.Now());
    EXPECT_TRUE(status.ok()) << status;
    return client;
  }
  bool Step() {
    auto plan = scheduler_->NextStep(clock_.Now());
    if (!plan) return false;
    scheduler_->OnStepResult(worker_->Run(*plan), clock_.Now());
    EXPECT_THAT(worker_->breaches(), ::testing::IsEmpty());
    EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit();
    return true;
  }
  void RunToEnd() {
    for (int steps = 0; !scheduler_->idle(); ++steps) {
      ASSERT_LT(steps, 20000);
      ASSERT_TRUE(Step());
    }
    EXPECT_EQ(scheduler_->stats().blocks_used, 0);
    EXPECT_EQ(scheduler_->states().free_slots() + scheduler_->stats().states_cached,
              config_.state_slots);
  }
  // Runs a request alone, checks its tokens and returns prompt and answer.
  Tokens Answer(const GenerationRequest& request) {
    auto client = Add(request);
    RunToEnd();
    EXPECT_EQ(client->Compare(request, kSeed), "");
    cached_tokens_ = client->cached_tokens;
    Tokens all = request.prompt_ids;
    const Tokens& answer = client->outputs[0].token_ids;
    all.insert(all.end(), answer.begin(), answer.end());
    return all;
  }
  uint64_t Prefilled() const { return scheduler_->stats().tokens_prefilled; }

  FakeTokenizer tokenizer_;
  SimulatedClock clock_;
  Rng rng_{7};
  SchedulerConfig config_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<SimWorker> worker_;
  int next_id_ = 0;
  int cached_tokens_ = 0;  // of the last Answer
};

INSTANTIATE_TEST_SUITE_P(States, SchedulerCacheTest, ::testing::Values(0, 33),
                         [](const auto& info) { return info.param == 0 ? "Without" : "With"; });

Tokens Joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_P(SchedulerCacheTest, TheNextTurnStartsBehindTheLastAnswer) {
  Start();
  const Tokens first = Answer(Request(Draw(10), 7));
  EXPECT_EQ(cached_tokens_, 0);
  const uint64_t before = Prefilled();
  Answer(Request(Joined(first, Draw(5)), 3));
  EXPECT_EQ(cached_tokens_, 16) << "all but the last token of the answer, which never ran";
  EXPECT_EQ(Prefilled() - before, 6u);
  EXPECT_EQ(scheduler_->stats().tokens_cached, 16u);
  EXPECT_EQ(scheduler_->stats().prompt_tokens, 10u + 22u);
}

TEST_P(SchedulerCacheTest, TheLastTokenOfAPromptIsAlwaysComputed) {
  Start();
  const Tokens prompt = Draw(12);
  Answer(Request(prompt, 1));
  const uint64_t before = Prefilled();
  Answer(Request(prompt, 1));
  // A state cannot be cut back: from the last chunk's end.
  EXPECT_EQ(Prefilled() - before, GetParam() == 0 ? 1u : 4u);
}

TEST_P(SchedulerCacheTest, TwentyTurnsEightAtATimePrefillWhatIsNew) {
  constexpr int kConversations = 8, kTurns = 20;
  Start(/*kv_blocks=*/4000);
  std::vector<Tokens> histories(kConversations);
  uint64_t said = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    std::vector<GenerationRequest> requests;
    std::vector<std::shared_ptr<TestClient>> clients;
    for (Tokens& history : histories) {
      const int tokens = static_cast<int>(rng_.Between(12, 60));
      said += tokens;
      requests.push_back(
          Request(Joined(history, Draw(tokens)), static_cast<int>(rng_.Between(5, 50))));
      clients.push_back(Add(requests.back()));
    }
    RunToEnd();
    for (int i = 0; i < kConversations; ++i) {
      ASSERT_EQ(clients[i]->Compare(requests[i], kSeed), "");
      histories[i] = Joined(requests[i].prompt_ids, clients[i]->outputs[0].token_ids);
    }
  }
  EXPECT_LE(Prefilled(), said * 11 / 10);
  EXPECT_EQ(scheduler_->stats().preemptions, 0u);
  const SchedulerStats stats = scheduler_->stats();
  EXPECT_EQ(stats.prompt_tokens, stats.tokens_cached + Prefilled());
}

TEST_P(SchedulerCacheTest, ThreeHundredTurnsKeepWithinThePool) {
  config_.options.set_chunked_prefill_size(32);
  Start(/*kv_blocks=*/500);
  Tokens history;
  for (int turn = 0; turn < 300; ++turn) {
    history = Answer(Request(Joined(history, Draw(1 + turn % 3)), 2 + turn % 4));
    ASSERT_EQ(scheduler_->stats().blocks_used, 0);
  }
  EXPECT_LE(Prefilled(), 300u * 3);
  scheduler_->FlushCache();
  EXPECT_EQ(scheduler_->stats().blocks_cached, 0);
  EXPECT_EQ(scheduler_->states().free_slots(), config_.state_slots);
  EXPECT_EQ(scheduler_->pool().free_blocks(), 500);
}

TEST_P(SchedulerCacheTest, ConcurrentRequestsComputeACommonBeginningOnce) {
  Start();
  const Tokens common = Draw(40);
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<TestClient>> clients;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(Request(Joined(common, Draw(9)), 3));
    clients.push_back(Add(requests.back()));
  }
  Step();
  EXPECT_GT(scheduler_->stats().blocks_used, 0);
  RunToEnd();
  for (int i = 0; i < 6; ++i) EXPECT_EQ(clients[i]->Compare(requests[i], kSeed), "");
  EXPECT_LE(Prefilled(), 40u + 6 * 9);
}

TEST_P(SchedulerCacheTest, APartOfAPromptIsFoundAgain) {
  Start();
  const Tokens common = Draw(64);
  Answer(Request(Joined(common, Draw(70)), 2));
  Answer(Request(Joined(common, Draw(5)), 2));
  EXPECT_EQ(cached_tokens_, 64) << "a power of two of chunks";
  Answer(Request(Joined({common.begin(), common.begin() + 50}, Draw(5)), 2));
  EXPECT_EQ(cached_tokens_, GetParam() == 0 ? 50 : 32) << "at least half where states are needed";
}

TEST_P(SchedulerCacheTest, AnAnswerThatWasCutIsFoundButForItsEnd) {
  Start();
  Tokens all = Answer(Request(Draw(30), 40));
  all.resize(68);  // of which 69 were computed
  Answer(Request(Joined(all, {1, 2, 3}), 1));
  EXPECT_GE(cached_tokens_, 68);
  all.resize(33);  // at its beginning: behind the prompt
  Answer(Request(Joined(all, {1, 2, 3}), 1));
  EXPECT_GE(cached_tokens_, 28);
}

TEST_P(SchedulerCacheTest, ChoicesAndTheNextRequestShareAPrompt) {
  Start();
  const Tokens prompt = Draw(23);
  for (int round = 0; round < 2; ++round) {
    GenerationRequest request = Request(prompt, 6);
    request.n = 4;
    auto client = Add(request);
    RunToEnd();
    EXPECT_EQ(client->Compare(request, kSeed), "");
    EXPECT_EQ(client->cached_tokens, round == 0 ? 0 : GetParam() == 0 ? 22 : 20);
  }
  EXPECT_LE(Prefilled(), 23u + 3 + 3 + 3) << "the last token is computed by each choice";
}

TEST_P(SchedulerCacheTest, APushedOutSequenceFindsItsOwnBlocks) {
  Start(/*kv_blocks=*/40);
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<TestClient>> clients;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(Request(Draw(20), 40));
    clients.push_back(Add(requests.back()));
  }
  RunToEnd();
  EXPECT_GT(scheduler_->stats().preemptions, 0u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(clients[i]->Compare(requests[i], kSeed), "");
    EXPECT_EQ(clients[i]->cached_tokens, 0) << "its own do not count";
  }
  EXPECT_LT(scheduler_->stats().tokens_recomputed, 4u * 20);
}

TEST_P(SchedulerCacheTest, AFailedStepIsRepeatedFromWhereItBegan) {
  Start();
  const GenerationRequest request = Request(Draw(20), 10);
  auto client = Add(request);
  for (int i = 0; i < 6; ++i) Step();
  proto::StepResult failed;
  failed.set_step_id(scheduler_->NextStep(clock_.Now())->step_id());
  failed.set_error("expert worker 1 is gone");
  scheduler_->OnStepResult(failed, clock_.Now());
  clock_.Advance(config_.step_retry_delay);
  RunToEnd();
  EXPECT_EQ(client->Compare(request, kSeed), "");
  EXPECT_EQ(scheduler_->stats().tokens_recomputed, 0u);
}

TEST_P(SchedulerCacheTest, LostWorkersEmptyTheCache) {
  Start();
  const Tokens all = Answer(Request(Draw(20), 5));
  EXPECT_GT(scheduler_->stats().blocks_cached, 0);
  scheduler_->OnWorkersLost("killed", clock_.Now());
  EXPECT_EQ(scheduler_->stats().blocks_cached, 0);
  Ready();
  Answer(Request(all, 5));
  EXPECT_EQ(cached_tokens_, 0);
}

TEST_P(SchedulerCacheTest, CachedBlocksGoBeforeAnySequenceIsPushedOut) {
  Start(/*kv_blocks=*/24);
  for (int i = 0; i < 5; ++i) Answer(Request(Draw(16), 9));
  EXPECT_GT(scheduler_->stats().blocks_cached, 20);
  Answer(Request(Draw(60), 30));
  EXPECT_EQ(scheduler_->stats().preemptions, 0u);
}

// A request that fills the pool, of whose beginning the cache has a part of a block: that block is
// to be copied, and there is no place for both.
TEST_P(SchedulerCacheTest, APoolThatIsJustLargeEnoughIsLargeEnough) {
  for (int kv_blocks : {2, 3, 5}) {
    Start(kv_blocks);
    const int size = kv_blocks * kBlockTokens;
    for (int common = 1; common < size; ++common) {
      const Tokens all = Answer(Request(Draw(common), 1));
      Answer(Request(Joined(all, Draw(size - common - 1)), 1));
    }
    EXPECT_EQ(scheduler_->stats().preemptions, 0u);
  }
}

TEST_P(SchedulerCacheTest, FlushingLeavesRunningRequestsAlone) {
  Start();
  const Tokens old = Answer(Request(Draw(20), 5));
  const GenerationRequest request = Request(Draw(20), 20);
  auto client = Add(request);
  for (int i = 0; i < 8; ++i) Step();
  const int used = scheduler_->stats().blocks_used;
  scheduler_->FlushCache();
  EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit();
  EXPECT_EQ(scheduler_->stats().blocks_cached, 0);
  EXPECT_EQ(scheduler_->stats().states_cached, 0);
  EXPECT_EQ(scheduler_->stats().blocks_used, used);
  RunToEnd();
  EXPECT_EQ(client->Compare(request, kSeed), "");
  Answer(Request(old, 1));
  EXPECT_EQ(cached_tokens_, 0);
}

TEST_P(SchedulerCacheTest, WhatIsToBeReportedIsComputed) {
  Start();
  const Tokens prompt = Draw(30);
  Answer(Request(prompt, 4));
  for (const bool capture : {false, true}) {
    GenerationRequest request = Request(prompt, 4);
    request.prompt_logprobs = !capture;
    request.capture.set_logits(capture);
    auto client = Add(request);
    RunToEnd();
    EXPECT_EQ(client->Compare(request, kSeed), "");
    EXPECT_EQ(client->cached_tokens, 0);
  }
  Answer(Request(prompt, 4));
  EXPECT_GT(cached_tokens_, 20) << "and serves others";
}

TEST_P(SchedulerCacheTest, OffMeansThatNothingIsKept) {
  config_.options.set_prefix_cache(false);
  Start();
  const Tokens all = Answer(Request(Draw(20), 5));
  EXPECT_EQ(scheduler_->stats().blocks_cached, 0);
  Answer(Request(all, 5));
  EXPECT_EQ(cached_tokens_, 0);
  EXPECT_EQ(Prefilled(), 45u);
}

}  // namespace
}  // namespace kt
