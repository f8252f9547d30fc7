// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "common/base/status.h"
#include "common/sim/rng.h"
#include "coordinator/scheduler/testing/fake_tokenizer.h"
#include "coordinator/scheduler/testing/sim_worker.h"
#include "coordinator/scheduler/testing/test_client.h"

namespace kt {
namespace {

using testing::FakeTokenizer;
using ::testing::HasSubstr;
using testing::SimWorker;
using testing::TestClient;

constexpr int kBlockTokens = 4;

class SchedulerTest : public ::testing::Test {
 protected:
  SchedulerTest() {
    proto::SchedulerOptions& o = config_.options;
    o.set_chunked_prefill_size(8);
    o.set_max_prefill_tokens(-1);
    o.set_max_running_requests(8);
    o.set_max_queued_requests(8);
    o.set_block_tokens(kBlockTokens);
    o.set_stream_interval(1);
    o.set_enable_mixed_chunk(true);
    config_.eos_token_ids = {FakeTokenizer::kEos};
  }

  void Start(int kv_blocks = 64, int step_tokens_max = 32) {
    auto scheduler = Scheduler::Create(config_, &tokenizer_);
    ASSERT_TRUE(scheduler.ok()) << scheduler.status();
    scheduler_ = *std::move(scheduler);
    Ready(kv_blocks, step_tokens_max);
  }
  void Ready(int kv_blocks = 64, int step_tokens_max = 32) {
    worker_ =
        std::make_unique<SimWorker>(kv_blocks, kBlockTokens, step_tokens_max, config_.state_slots);
    scheduler_->OnWorkersReady(kv_blocks, step_tokens_max, clock_.Now());
  }

  static GenerationRequest Request(std::string id, int prompt, int max_new_tokens) {
    GenerationRequest r;
    r.id = std::move(id);
    for (int i = 0; i < prompt; ++i) r.prompt_ids.push_back(1 + (i * 7 + prompt) % 31);
    r.max_new_tokens = max_new_tokens;
    r.sampling.seed = 11;
    r.ignore_eos = true;
    return r;
  }
  std::shared_ptr<TestClient> Add(const GenerationRequest& request) {
    auto client = std::make_shared<TestClient>(request.n);
    const absl::Status status = scheduler_->Add(request, client, clock_.Now());
    EXPECT_TRUE(status.ok()) << status;
    return client;
  }
  absl::Status TryAdd(const GenerationRequest& request) {
    return scheduler_->Add(request, std::make_shared<TestClient>(request.n), clock_.Now());
  }

  proto::StepPlan Plan() {
    auto plan = scheduler_->NextStep(clock_.Now());
    EXPECT_TRUE(plan.has_value());
    return plan.value_or(proto::StepPlan());
  }
  void Answer(const proto::StepPlan& plan) {
    scheduler_->OnStepResult(worker_->Run(plan), clock_.Now());
    EXPECT_THAT(worker_->breaches(), ::testing::IsEmpty());
    EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit();
  }
  void Fail(const proto::StepPlan& plan, const std::string& error) {
    proto::StepResult result;
    result.set_step_id(plan.step_id());
    result.set_error(error);
    scheduler_->OnStepResult(result, clock_.Now());
  }
  void RunToEnd() {
    for (int steps = 0; !scheduler_->idle(); ++steps) {
      ASSERT_LT(steps, 10000);
      auto plan = scheduler_->NextStep(clock_.Now());
      if (!plan) {
        ASSERT_TRUE(scheduler_->NextTimer().has_value());
        clock_.Advance(*scheduler_->NextTimer() - clock_.Now());
        continue;
      }
      Answer(*plan);
    }
    EXPECT_EQ(scheduler_->stats().blocks_used, 0);
    EXPECT_EQ(scheduler_->states().free_slots(), config_.state_slots);
  }

  FakeTokenizer tokenizer_;
  SimulatedClock clock_;
  SchedulerConfig config_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<SimWorker> worker_;
};

TEST_F(SchedulerTest, StepsOfEnoughRowsAreLayerwise) {
  config_.options.set_gpu_prefill_token_threshold(6);
  config_.options.set_enable_mixed_chunk(false);
  Start();
  scheduler_->OnLayerwiseCosts({.possible = true});
  Add(Request("a", 21, 1));
  std::vector<std::pair<int, proto::StepMode>> steps;
  while (!scheduler_->idle()) {
    const proto::StepPlan plan = Plan();
    steps.emplace_back(plan.sequences(0).token_ids_size(), plan.mode());
    EXPECT_EQ(plan.placement_version(), 1u);
    Answer(plan);
  }
  const std::vector<std::pair<int, proto::StepMode>> want = {{8, proto::STEP_MODE_LAYERWISE},
                                                             {8, proto::STEP_MODE_LAYERWISE},
                                                             {5, proto::STEP_MODE_HYBRID}};
  EXPECT_EQ(steps, want) << "the tail of the prompt is short";
  EXPECT_EQ(scheduler_->stats().steps_layerwise, 2u);
}

TEST_F(SchedulerTest, DecodeRowsOfAMixedStepCount) {
  config_.options.set_gpu_prefill_token_threshold(6);
  Start();
  scheduler_->OnLayerwiseCosts({.possible = true});
  Add(Request("a", 2, 9));
  Answer(Plan());
  Add(Request("b", 5, 9));
  const proto::StepPlan plan = Plan();
  ASSERT_EQ(plan.sequences_size(), 2) << "one token of a, five of b";
  EXPECT_EQ(plan.mode(), proto::STEP_MODE_LAYERWISE);
  Answer(plan);
  EXPECT_EQ(Plan().mode(), proto::STEP_MODE_HYBRID) << "two decode rows";
}

TEST_F(SchedulerTest, NoStepIsLayerwiseWhereWorkersCannot) {
  config_.options.set_gpu_prefill_token_threshold(1);
  Start();
  Add(Request("a", 8, 1));
  EXPECT_EQ(Plan().mode(), proto::STEP_MODE_HYBRID);
}

TEST_F(SchedulerTest, RunsARequestToItsEnd) {
  Start();
  const GenerationRequest request = Request("a", 10, 5);
  auto client = Add(request);
  EXPECT_EQ(Plan().sequences(0).token_ids_size(), 8) << "one chunk";
  EXPECT_FALSE(scheduler_->NextStep(clock_.Now()).has_value()) << "one step in flight";
  scheduler_->OnWorkersLost("", clock_.Now());
  Ready();
  RunToEnd();
  EXPECT_EQ(client->Compare(request, 11), "");
  EXPECT_TRUE(client->ended());
  EXPECT_EQ(client->outputs[0].token_ids.size(), 5u);
  EXPECT_EQ(client.use_count(), 1);
}

TEST_F(SchedulerTest, OptionsOutOfRangeAreNamed) {
  config_.options.set_chunked_prefill_size(0);
  auto scheduler = Scheduler::Create(config_, &tokenizer_);
  EXPECT_TRUE(absl::IsInvalidArgument(scheduler.status()));
  EXPECT_THAT(Message(scheduler.status()), HasSubstr("chunked_prefill_size: 0"));
}

TEST_F(SchedulerTest, RefusesWhatCanNeverRunWithBothNumbers) {
  Start(/*kv_blocks=*/4);
  EXPECT_TRUE(TryAdd(Request("fits", 10, 7)).ok());
  const absl::Status status = TryAdd(Request("a", 10, 8));
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(Message(status), HasSubstr("need 17 tokens of cache and the pool has 16"));
}

TEST_F(SchedulerTest, RefusesBadRequests) {
  Start();
  EXPECT_TRUE(absl::IsInvalidArgument(TryAdd(Request("a", 0, 1))));
  EXPECT_TRUE(absl::IsInvalidArgument(TryAdd(Request("a", 1, 0))));
  GenerationRequest no_choice = Request("a", 1, 1);
  no_choice.n = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(TryAdd(no_choice)));
  GenerationRequest empty_stop = Request("a", 1, 1);
  empty_stop.stop = {"x", ""};
  EXPECT_TRUE(absl::IsInvalidArgument(TryAdd(empty_stop)));
  EXPECT_TRUE(TryAdd(Request("a", 1, 1)).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(TryAdd(Request("a", 1, 1))));
  EXPECT_EQ(scheduler_->stats().requests_refused, 5u);
}

TEST_F(SchedulerTest, AFullQueueSaysHowFull) {
  config_.options.set_max_queued_requests(2);
  config_.options.set_max_running_requests(1);
  Start();
  Add(Request("running", 1, 3));
  Answer(Plan());
  Add(Request("b", 1, 1));
  Add(Request("c", 1, 1));
  const absl::Status status = TryAdd(Request("d", 1, 1));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(Message(status), HasSubstr("2 requests wait and max_queued_requests is 2"));
  RunToEnd();
  EXPECT_TRUE(TryAdd(Request("d", 1, 1)).ok());
}

TEST_F(SchedulerTest, NotReadyAndDrainingAreUnavailable) {
  auto scheduler = Scheduler::Create(config_, &tokenizer_);
  scheduler_ = *std::move(scheduler);
  EXPECT_TRUE(absl::IsUnavailable(TryAdd(Request("a", 1, 1))));
  Ready();
  auto client = Add(Request("a", 1, 2));
  scheduler_->Drain();
  EXPECT_TRUE(absl::IsUnavailable(TryAdd(Request("b", 1, 1))));
  RunToEnd();
  EXPECT_TRUE(client->ended() && client->error.ok());
}

TEST_F(SchedulerTest, ALongPromptDoesNotStopDecodes) {
  for (bool mixed : {true, false}) {
    config_.options.set_enable_mixed_chunk(mixed);
    Start();
    auto decoding = Add(Request("short", 2, 30));
    Answer(Plan());
    Add(Request("long", 120, 1));
    int steps = 0;
    const int before = decoding->events;
    for (; scheduler_->stats().tokens_prefilled < 122; ++steps) Answer(Plan());
    EXPECT_EQ(decoding->events - before, mixed ? steps : steps / 2) << "every step, or every other";
    EXPECT_EQ(steps, mixed ? 15 : 30);
    RunToEnd();
  }
}

TEST_F(SchedulerTest, PrefillChunksShareTheBudgetOfAStep) {
  Start();
  Add(Request("a", 5, 1));
  Add(Request("b", 9, 1));
  const proto::StepPlan plan = Plan();
  ASSERT_EQ(plan.sequences_size(), 2);
  EXPECT_EQ(plan.sequences(0).token_ids_size(), 5);
  EXPECT_TRUE(plan.sequences(0).has_sampling());
  EXPECT_EQ(plan.sequences(1).token_ids_size(), 3);
  EXPECT_FALSE(plan.sequences(1).has_sampling());
}

TEST_F(SchedulerTest, TheWorkersStepLimitHolds) {
  config_.options.set_chunked_prefill_size(-1);
  Start(64, /*step_tokens_max=*/5);
  for (int i = 0; i < 8; ++i) Add(Request(std::to_string(i), 7, 4));
  RunToEnd();  // the worker checks
  EXPECT_EQ(scheduler_->stats().requests_finished, 8u);
}

TEST_F(SchedulerTest, ChoicesShareThePromptAndCopyOnWrite) {
  Start();
  GenerationRequest request = Request("a", 6, 4);
  request.n = 3;
  auto client = Add(request);
  proto::StepPlan plan = Plan();
  ASSERT_EQ(plan.sequences_size(), 1) << "the prompt is computed once";
  Answer(plan);
  plan = Plan();
  ASSERT_EQ(plan.sequences_size(), 3);
  EXPECT_EQ(plan.copies_size(), 2) << "the half-full block, for all but one";
  EXPECT_EQ(plan.sequences(1).start_position(), 5);
  EXPECT_EQ(plan.sequences(0).block_table(0), plan.sequences(2).block_table(0));
  EXPECT_EQ(scheduler_->stats().blocks_used, 4);
  Answer(plan);
  RunToEnd();
  EXPECT_EQ(client->Compare(request, 11), "");
  EXPECT_EQ(client->finished, 3);
  EXPECT_EQ(scheduler_->stats().tokens_recomputed, 0u);
}

TEST_F(SchedulerTest, ThePromptIsComputedOnceEvenIfOneChoiceRunsAtATime) {
  config_.options.set_max_running_requests(1);
  Start();
  GenerationRequest request = Request("a", 8, 1);
  request.n = 4;
  auto client = Add(request);
  RunToEnd();
  EXPECT_EQ(client->Compare(request, 11), "");
  EXPECT_EQ(scheduler_->stats().tokens_prefilled, 8u + 3u);
}

TEST_F(SchedulerTest, TheYoungestGivesWayAndContinuesWithTheSameTokens) {
  Start(/*kv_blocks=*/8);
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<TestClient>> clients;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(Request(std::to_string(i), 6, 20));
    clients.push_back(Add(requests.back()));
  }
  RunToEnd();
  EXPECT_GT(scheduler_->stats().preemptions, 0u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(clients[i]->Compare(requests[i], 11), "");
  EXPECT_EQ(scheduler_->stats().requests_finished, 3u);
}

TEST_F(SchedulerTest, DrawsDoNotDependOnTheBatch) {
  GenerationRequest request = Request("a", 9, 6);
  request.n = 2;
  request.sampling.seed = 12;
  using Draw = std::pair<uint32_t, uint32_t>;  // choice, position
  std::map<Draw, int> draws[2];
  for (int others : {0, 5}) {
    Start();
    for (int i = 0; i < others; ++i) Add(Request(std::to_string(i), 3 + i, 9));
    Add(request);
    while (!scheduler_->idle()) {
      const proto::StepPlan plan = Plan();
      for (const proto::SequenceStep& s : plan.sequences()) {
        if (s.sampling().seed() == 12)
          ++draws[others > 0][{s.sampling().choice(), s.sampling().position()}];
      }
      Answer(plan);
    }
  }
  EXPECT_EQ(draws[0].size(), 12u);
  EXPECT_EQ(draws[0], draws[1]);
}

TEST_F(SchedulerTest, SeedsNotGivenAreDrawnOneAfterTheOther) {
  config_.options.set_random_seed(42);
  Start();
  GenerationRequest request = Request("a", 1, 1);
  request.sampling.seed.reset();
  Add(request);
  request.id = "b";
  Add(request);
  const proto::StepPlan plan = Plan();
  EXPECT_EQ(plan.sequences(0).sampling().seed(), SplitMix64(42));
  EXPECT_EQ(plan.sequences(1).sampling().seed(), SplitMix64(43));
}

TEST_F(SchedulerTest, CountsAreSentOnlyWithAPenalty) {
  Start();
  GenerationRequest request = Request("a", 3, 3);
  request.prompt_ids = {5, 6, 5};
  Add(request);
  request.id = "b";
  request.sampling.repetition_penalty = 1.5;
  Add(request);
  proto::StepPlan plan = Plan();
  EXPECT_EQ(plan.sequences(0).sampling().counts_size(), 0);
  EXPECT_EQ(plan.sequences(1).sampling().counts_size(), 2);
  Answer(plan);
  plan = Plan();
  int in_output = 0;
  for (const auto& c : plan.sequences(1).sampling().counts()) in_output += c.in_output();
  EXPECT_EQ(in_output, 1);
}

TEST_F(SchedulerTest, StopTokensAreSuppressedUntilMinNewTokens) {
  Start();
  GenerationRequest request = Request("a", 3, 8);
  request.ignore_eos = false;
  request.min_new_tokens = 2;
  request.stop_token_ids = {9};
  auto client = Add(request);
  std::vector<int> suppressed;
  while (!scheduler_->idle()) {
    const proto::StepPlan plan = Plan();
    suppressed.push_back(plan.sequences(0).sampling().suppressed_ids_size());
    Answer(plan);
  }
  ASSERT_GE(suppressed.size(), 3u);
  EXPECT_EQ(suppressed[0], 2);
  EXPECT_EQ(suppressed[1], 2);
  EXPECT_EQ(suppressed[2], 0);
  EXPECT_EQ(client->Compare(request, 11), "");
}

TEST_F(SchedulerTest, PromptLogprobsCrossChunkBorders) {
  Start();
  GenerationRequest request = Request("a", 20, 0);
  request.prompt_logprobs = true;
  request.top_logprobs = 2;
  auto client = Add(request);
  const proto::StepPlan plan = Plan();
  ASSERT_EQ(plan.sequences(0).target_ids_size(), 8);
  EXPECT_EQ(plan.sequences(0).target_ids(7), request.prompt_ids[8]);
  Answer(plan);
  RunToEnd();
  EXPECT_EQ(client->Compare(request, 11), "");
  EXPECT_EQ(client->outputs[0].prompt_logprobs.size(), 19u);
  EXPECT_EQ(client->outputs[0].finish_reason, FinishReason::kLength);
  EXPECT_EQ(client->events, 1);
}

TEST_F(SchedulerTest, PromptLogprobsAndCapturesAreNotRepeatedAfterALoss) {
  Start();
  GenerationRequest request = Request("a", 20, 6);
  request.prompt_logprobs = true;
  request.capture.set_logits(true);
  auto client = Add(request);
  for (int steps : {2, 3, 5}) {
    for (int i = 0; i < steps; ++i) Answer(Plan());
    scheduler_->OnWorkersLost("killed", clock_.Now());
    Ready();
  }
  const proto::StepPlan again = Plan();
  for (int32_t target : again.sequences(0).target_ids())
    EXPECT_EQ(target, -1) << "the worker is not asked again";
  EXPECT_FALSE(again.sequences(0).has_capture());
  Answer(again);
  RunToEnd();
  EXPECT_EQ(client->Compare(request, 11), "");
  EXPECT_EQ(client->outputs[0].captured_logits.size(), 25u);
}

TEST_F(SchedulerTest, ACancelledRequestLeavesWithTheStepInFlight) {
  Start();
  auto client = Add(Request("a", 6, 30));
  auto other = Add(Request("b", 6, 3));
  Answer(Plan());
  const proto::StepPlan plan = Plan();
  const int events = client->events;
  scheduler_->Cancel("a");
  EXPECT_EQ(client.use_count(), 1);
  EXPECT_GT(scheduler_->stats().blocks_used, 2) << "the step in flight still uses them";
  EXPECT_TRUE(TryAdd(Request("a", 1, 1)).ok()) << "the id is free again";
  scheduler_->Cancel("a");
  Answer(plan);
  EXPECT_EQ(Plan().sequences_size(), 1);
  EXPECT_EQ(scheduler_->stats().blocks_used, 2);
  EXPECT_EQ(client->events, events);
  EXPECT_EQ(scheduler_->stats().requests_cancelled, 2u);
  scheduler_->Cancel("nobody");
}

TEST_F(SchedulerTest, AQueuedRequestIsCancelledAtOnce) {
  config_.options.set_max_running_requests(1);
  Start();
  Add(Request("a", 1, 2));
  Answer(Plan());
  Add(Request("b", 1, 2));
  scheduler_->Cancel("b");
  EXPECT_EQ(scheduler_->stats().requests_queued, 0);
  RunToEnd();
}

TEST_F(SchedulerTest, WaitingTooLongEndsWithUnavailable) {
  config_.options.set_max_running_requests(1);
  config_.queue_timeout = std::chrono::seconds(3);
  Start();
  auto running = Add(Request("a", 1, 50));
  Answer(Plan());
  auto waiting = Add(Request("b", 1, 1));
  ASSERT_TRUE(scheduler_->NextTimer().has_value());
  EXPECT_EQ(*scheduler_->NextTimer() - clock_.Now(), std::chrono::seconds(3));
  clock_.Advance(std::chrono::milliseconds(2999));
  scheduler_->OnTimer(clock_.Now());
  EXPECT_FALSE(waiting->ended());
  clock_.Advance(std::chrono::milliseconds(1));
  scheduler_->OnTimer(clock_.Now());
  EXPECT_TRUE(absl::IsUnavailable(waiting->error));
  EXPECT_FALSE(scheduler_->NextTimer().has_value());
  EXPECT_FALSE(running->ended());
  RunToEnd();
}

TEST_F(SchedulerTest, AnErrorOfOneSequenceFailsItsRequestAlone) {
  Start();
  GenerationRequest two_choices = Request("a", 4, 5);
  two_choices.n = 2;
  auto a = Add(two_choices);
  const GenerationRequest request = Request("b", 4, 5);
  auto b = Add(request);
  Answer(Plan());
  const proto::StepPlan plan = Plan();
  ASSERT_EQ(plan.sequences_size(), 3);
  proto::StepResult result = worker_->Run(plan);
  result.mutable_sequences(0)->set_error("logits are not finite");
  scheduler_->OnStepResult(result, clock_.Now());
  EXPECT_TRUE(absl::IsInternal(a->error));
  EXPECT_THAT(Message(a->error), HasSubstr("request a, choice 0: logits are not finite"));
  EXPECT_EQ(a->breach, "");
  RunToEnd();
  EXPECT_EQ(b->Compare(request, 11), "");
  EXPECT_TRUE(b->error.ok());
}

TEST_F(SchedulerTest, LostWorkersCostTimeOnly) {
  Start();
  const GenerationRequest request = Request("a", 10, 10);
  auto client = Add(request);
  for (int i = 0; i < 5; ++i) Answer(Plan());
  const proto::StepPlan plan = Plan();
  scheduler_->OnWorkersLost("killed", clock_.Now());
  EXPECT_FALSE(scheduler_->NextStep(clock_.Now()).has_value());
  const int events = client->events;
  scheduler_->OnStepResult(worker_->Run(plan), clock_.Now());
  EXPECT_EQ(client->events, events) << "a late answer counts for nothing";
  EXPECT_TRUE(TryAdd(Request("new", 1, 1)).ok()) << "new ones wait as well";
  Ready();
  RunToEnd();
  EXPECT_EQ(client->Compare(request, 11), "");
  EXPECT_TRUE(client->ended() && client->error.ok());
}

TEST_F(SchedulerTest, AnyNumberOfLossesIsBorneWhileTheRequestGetsFurther) {
  Start();
  const GenerationRequest request = Request("a", 3, 20);
  auto client = Add(request);
  while (!scheduler_->idle()) {
    Answer(Plan());
    if (scheduler_->idle()) break;
    Plan();
    scheduler_->OnWorkersLost("killed", clock_.Now());
    Ready();
    const uint64_t generated = scheduler_->stats().tokens_generated;
    while (scheduler_->stats().tokens_generated == generated) Answer(Plan());
  }
  EXPECT_GT(scheduler_->stats().steps_lost, 5u);
  EXPECT_EQ(client->Compare(request, 11), "");
  EXPECT_TRUE(client->ended() && client->error.ok());
}

TEST_F(SchedulerTest, WorkersThatStayAwayEndTheWait) {
  config_.queue_timeout = std::chrono::seconds(3);
  Start();
  auto client = Add(Request("a", 10, 10));
  Answer(Plan());
  EXPECT_FALSE(scheduler_->NextTimer().has_value());
  scheduler_->OnWorkersLost("killed", clock_.Now());
  clock_.Advance(std::chrono::seconds(3));
  scheduler_->OnTimer(clock_.Now());
  EXPECT_TRUE(absl::IsUnavailable(client->error));
  EXPECT_THAT(Message(client->error), HasSubstr("while workers are missing"));
  EXPECT_TRUE(scheduler_->idle());
}

TEST_F(SchedulerTest, ASmallerPoolEndsWhatNoLongerFits) {
  Start();
  auto large = Add(Request("large", 40, 10));
  auto small = Add(Request("small", 4, 2));
  Answer(Plan());
  scheduler_->OnWorkersLost("killed", clock_.Now());
  Ready(/*kv_blocks=*/4);
  EXPECT_TRUE(absl::IsInvalidArgument(large->error));
  RunToEnd();
  EXPECT_TRUE(small->error.ok());
}

TEST_F(SchedulerTest, AFailedStepIsTriedAgainAfterADelay) {
  Start();
  const GenerationRequest request = Request("a", 4, 3);
  auto client = Add(request);
  Fail(Plan(), "expert worker 1 is gone");
  EXPECT_FALSE(scheduler_->NextStep(clock_.Now()).has_value());
  EXPECT_EQ(*scheduler_->NextTimer() - clock_.Now(), config_.step_retry_delay);
  RunToEnd();
  EXPECT_EQ(client->Compare(request, 11), "");
  EXPECT_EQ(scheduler_->stats().steps_lost, 1u);
}

TEST_F(SchedulerTest, AnAnswerThatDoesNotFitThePlanIsAFailedStep) {
  Start();
  const GenerationRequest request = Request("a", 4, 3);
  auto client = Add(request);
  const proto::StepPlan plan = Plan();
  proto::StepResult result = worker_->Run(plan);
  result.mutable_sequences(0)->set_sequence_id(99);
  scheduler_->OnStepResult(result, clock_.Now());
  EXPECT_EQ(client->events, 0);
  EXPECT_EQ(scheduler_->stats().steps_lost, 1u);
  RunToEnd();
  EXPECT_EQ(client->Compare(request, 11), "");
}

// One request kills every step from a certain position on: it alone must fail, although all ran
// with it.
TEST_F(SchedulerTest, ARequestThatKillsItsStepsTakesNoOtherWithIt) {
  Start();
  const GenerationRequest good_request = Request("good", 6, 20),
                          poison_request = Request("poison", 12, 20);
  auto good = Add(good_request);
  auto poison = Add(poison_request);
  const uint64_t poison_id = 2;
  for (int steps = 0; !scheduler_->idle(); ++steps) {
    ASSERT_LT(steps, 500);
    auto plan = scheduler_->NextStep(clock_.Now());
    if (!plan) {
      clock_.Advance(*scheduler_->NextTimer() - clock_.Now());
      continue;
    }
    bool killed = false;
    for (const proto::SequenceStep& s : plan->sequences()) {
      killed |= s.sequence_id() == poison_id && s.start_position() + s.token_ids_size() > 14;
    }
    if (killed) {
      Fail(*plan, "device fault");
    } else {
      Answer(*plan);
    }
  }
  EXPECT_TRUE(absl::IsInternal(poison->error));
  EXPECT_THAT(
      Message(poison->error),
      HasSubstr("request poison: given up after 3 lost steps in a row; the last: device fault"));
  EXPECT_EQ(poison->outputs[0].token_ids.size(), 3u);
  EXPECT_TRUE(good->ended() && good->error.ok());
  EXPECT_EQ(good->Compare(good_request, 11), "");
}

TEST_F(SchedulerTest, AModelWithoutStateNamesNoSlots) {
  Start();
  Add(Request("a", 10, 5));
  Answer(Plan());
  const proto::StepPlan plan = Plan();
  EXPECT_EQ(plan.sequences(0).state_source(), 0);
  EXPECT_EQ(plan.sequences(0).state_target(), 0);
}

TEST_F(SchedulerTest, AStepReadsTheSlotThatTheOneBeforeHasWritten) {
  config_.state_slots = 4;
  Start();
  const GenerationRequest request = Request("a", 10, 5);
  auto client = Add(request);
  int last = 0;
  for (int steps = 0; steps < 6; ++steps) {
    const proto::StepPlan plan = Plan();
    EXPECT_EQ(plan.sequences(0).state_source(), last);
    last = plan.sequences(0).state_target();
    EXPECT_EQ(last, steps % 2 + 1) << "two slots in turn";
    Answer(plan);
  }
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_EQ(client->Compare(request, 11), "");
  EXPECT_EQ(scheduler_->states().free_slots(), 4);
}

TEST_F(SchedulerTest, ChoicesReadTheStateOfTheirPromptAndWriteTheirOwn) {
  config_.state_slots = 17;
  Start();
  GenerationRequest request = Request("a", 6, 4);
  request.n = 3;
  auto client = Add(request);
  proto::StepPlan plan = Plan();
  ASSERT_EQ(plan.sequences_size(), 1) << "the prompt is computed once";
  EXPECT_EQ(plan.sequences(0).token_ids_size(), 5) << "and its last token by each";
  const int prompt = plan.sequences(0).state_target();
  Answer(plan);
  plan = Plan();
  ASSERT_EQ(plan.sequences_size(), 3);
  for (const proto::SequenceStep& s : plan.sequences()) {
    EXPECT_EQ(s.start_position(), 5);
    EXPECT_EQ(s.state_source(), prompt);
  }
  EXPECT_EQ(scheduler_->states().refs(prompt), 3);
  Answer(plan);
  EXPECT_EQ(scheduler_->states().refs(prompt), 0) << "nobody waits for it";
  EXPECT_EQ(scheduler_->states().free_slots(), 14);
  RunToEnd();
  EXPECT_EQ(client->Compare(request, 11), "");
  EXPECT_EQ(scheduler_->stats().tokens_recomputed, 0u);
}

TEST_F(SchedulerTest, AStateToSpareKeepsThePromptForChoicesThatWait) {
  config_.options.set_max_running_requests(1);
  for (int slots : {2, 3}) {
    config_.state_slots = slots;
    Start();
    GenerationRequest request = Request("a", 8, 3);
    request.n = 4;
    auto client = Add(request);
    RunToEnd();
    EXPECT_EQ(client->Compare(request, 11), "");
    EXPECT_EQ(scheduler_->stats().tokens_prefilled, slots == 3 ? 8u + 3u : 4 * 8u);
  }
}

TEST_F(SchedulerTest, AdmissionWaitsForSlots) {
  config_.state_slots = 5;
  Start();
  for (int i = 0; i < 3; ++i) Add(Request(std::to_string(i), 2, 4 + i));
  proto::StepPlan plan = Plan();
  EXPECT_EQ(plan.sequences_size(), 2);
  for (; scheduler_->stats().requests_finished == 0; plan = Plan()) Answer(plan);
  EXPECT_EQ(plan.sequences_size(), 2) << "the third has the slots of the first";
  Answer(plan);
  RunToEnd();
  EXPECT_EQ(scheduler_->stats().requests_finished, 3u);
}

TEST_F(SchedulerTest, LossesPreemptionAndCancellationReturnSlots) {
  config_.state_slots = 17;
  Start(/*kv_blocks=*/8);
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<TestClient>> clients;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(Request(std::to_string(i), 6, 20));
    requests.back().n = 1 + i % 2;
    clients.push_back(Add(requests.back()));
  }
  auto cancelled = Add(Request("cancelled", 6, 20));
  Answer(Plan());
  Fail(Plan(), "device fault");
  EXPECT_EQ(scheduler_->states().free_slots(), 17) << "the states are computed again";
  clock_.Advance(config_.step_retry_delay);
  Answer(Plan());
  Plan();
  scheduler_->OnWorkersLost("killed", clock_.Now());
  EXPECT_EQ(scheduler_->states().free_slots(), 17);
  Ready(/*kv_blocks=*/8);
  Answer(Plan());
  const proto::StepPlan plan = Plan();
  scheduler_->Cancel("0");
  scheduler_->Cancel("cancelled");
  EXPECT_EQ(scheduler_->states().refs(plan.sequences(0).state_target()), 1)
      << "the step in flight still writes it";
  Answer(plan);
  RunToEnd();
  EXPECT_GT(scheduler_->stats().preemptions, 0u);
  for (int i : {1, 2}) EXPECT_EQ(clients[i]->Compare(requests[i], 11), "");
  EXPECT_EQ(scheduler_->stats().requests_finished, 2u);
}

TEST_F(SchedulerTest, FailAllEndsEverything) {
  Start();
  auto a = Add(Request("a", 4, 9));
  auto b = Add(Request("b", 4, 9));
  const proto::StepPlan plan = Plan();
  scheduler_->FailAll(Unavailable("stopping"));
  EXPECT_TRUE(absl::IsUnavailable(a->error));
  EXPECT_TRUE(absl::IsUnavailable(b->error));
  Answer(plan);
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_EQ(scheduler_->stats().blocks_used, 0);
}

TEST_F(SchedulerTest, StatisticsAddUp) {
  Start();
  Add(Request("a", 10, 5));
  RunToEnd();
  const SchedulerStats stats = scheduler_->stats();
  EXPECT_EQ(stats.tokens_prefilled, 10u);
  EXPECT_EQ(stats.tokens_generated, 5u);
  EXPECT_EQ(stats.steps, 6u);
  EXPECT_EQ(stats.timings.total_ms(), 6);
  EXPECT_EQ(stats.requests_finished, 1u);
  EXPECT_EQ(stats.blocks_total, 64);
}

}  // namespace
}  // namespace kt
