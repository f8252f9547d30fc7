// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/choice_output.h"

#include <gtest/gtest.h>

#include "coordinator/scheduler/testing/fake_tokenizer.h"

namespace kt {
namespace {

using testing::FakeTokenizer;

class ChoiceOutputTest : public ::testing::Test {
 protected:
  ChoiceOutputTest() { request_.max_new_tokens = 100; }

  // Pushes tokens of the given spellings; returns all events.
  std::vector<GenerationEvent> Push(const std::vector<std::string>& tokens,
                                    int stream_interval = 1) {
    const std::vector<int32_t> eos = {FakeTokenizer::kEos};
    rules_.emplace(request_, &tokenizer_, eos, stream_interval);
    output_.emplace(&*rules_, 3);
    std::vector<GenerationEvent> events;
    for (const std::string& token : tokens) {
      EXPECT_FALSE(output_->finished());
      TokenLogprob logprob{.token_id = *tokenizer_.TokenId(token)};
      output_->Push(logprob.token_id, logprob);
      if (auto event = output_->TakeEvent()) events.push_back(*std::move(event));
    }
    return events;
  }

  FakeTokenizer tokenizer_;
  GenerationRequest request_;
  std::optional<OutputRules> rules_;
  std::optional<ChoiceOutput> output_;
};

TEST_F(ChoiceOutputTest, EveryTokenIsAnEvent) {
  const auto events = Push({"a", "b"});
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].choice, 3);
  EXPECT_EQ(events[0].text, "a");
  EXPECT_EQ(events[1].text, "b");
  EXPECT_EQ(events[1].token_ids.size(), 1u);
  EXPECT_EQ(events[1].logprobs.size(), 1u);
  EXPECT_EQ(events[1].finish_reason, FinishReason::kNone);
}

TEST_F(ChoiceOutputTest, StreamIntervalGathersTokensAfterTheFirst) {
  request_.max_new_tokens = 6;
  const auto events = Push({"a", "b", "c", "d", "e", "f"}, 3);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].text, "a");
  EXPECT_EQ(events[1].text, "bcd");
  EXPECT_EQ(events[1].logprobs.size(), 3u);
  EXPECT_EQ(events[2].text, "ef");
  EXPECT_EQ(events[2].finish_reason, FinishReason::kLength);
}

TEST_F(ChoiceOutputTest, AnEndTokenStopsAndAddsNoText) {
  const auto events = Push({"a", "</s>"});
  EXPECT_EQ(events[1].finish_reason, FinishReason::kStop);
  EXPECT_EQ(events[1].matched_token, FakeTokenizer::kEos);
  EXPECT_EQ(events[1].token_ids, std::vector<int32_t>{FakeTokenizer::kEos});
  EXPECT_EQ(events[1].text, "");
  EXPECT_TRUE(output_->finished());
}

TEST_F(ChoiceOutputTest, IgnoreEosGoesOnButStopTokensOfTheRequestStillStop) {
  request_.ignore_eos = true;
  request_.skip_special_tokens = false;
  request_.stop_token_ids = {*tokenizer_.TokenId("c")};
  const auto events = Push({"</s>", "a", "c"});
  EXPECT_EQ(events[0].text, "</s>");
  EXPECT_EQ(events[0].finish_reason, FinishReason::kNone);
  EXPECT_EQ(events[2].finish_reason, FinishReason::kStop);
  EXPECT_EQ(events[2].matched_token, tokenizer_.TokenId("c"));
}

TEST_F(ChoiceOutputTest, StopStringAcrossTokensIsCut) {
  request_.stop = {"bdc"};
  const auto events = Push({"ab", "d", "ca"});
  EXPECT_EQ(events[0].text, "a");
  EXPECT_EQ(events[1].text, "");
  EXPECT_EQ(events[2].text, "");
  EXPECT_EQ(events[2].finish_reason, FinishReason::kStop);
  EXPECT_EQ(events[2].matched_stop, "bdc");
  EXPECT_EQ(events[2].token_ids.size(), 1u);
}

TEST_F(ChoiceOutputTest, LengthReleasesWhatWasHeldBack) {
  request_.stop = {"bdc"};
  request_.max_new_tokens = 2;
  const auto events = Push({"ab", "d"});
  EXPECT_EQ(events[1].text, "bd");
  EXPECT_EQ(events[1].finish_reason, FinishReason::kLength);
}

TEST_F(ChoiceOutputTest, StopStringInTheLastTokenOutranksLength) {
  request_.stop = {"b"};
  request_.max_new_tokens = 1;
  EXPECT_EQ(Push({"b"})[0].finish_reason, FinishReason::kStop);
}

TEST_F(ChoiceOutputTest, NothingStopsInTheFirstTokens) {
  request_.min_new_tokens = 2;
  request_.stop = {"a"};
  const auto events = Push({"a", "</s>", "b", "a"});
  EXPECT_EQ(events[0].text, "a");
  EXPECT_EQ(events[1].finish_reason, FinishReason::kNone);
  EXPECT_EQ(events[2].text, "b");
  EXPECT_EQ(events[3].finish_reason, FinishReason::kStop);
  EXPECT_EQ(events[3].text, "");
}

TEST_F(ChoiceOutputTest, HalfACharacterWaitsAndIsReplacedAtTheEnd) {
  request_.max_new_tokens = 3;
  auto events = Push({"\xC3", "\xA9", "\xC3"});
  EXPECT_EQ(events[0].text, "");
  EXPECT_EQ(events[0].token_ids.size(), 1u);
  EXPECT_EQ(events[1].text, "\xC3\xA9");
  EXPECT_EQ(events[2].text, "\xEF\xBF\xBD");
}

TEST_F(ChoiceOutputTest, FinishEmptySendsWhatWasGathered) {
  Push({});
  output_->AddPromptLogprob({.token_id = 4});
  EXPECT_FALSE(output_->TakeEvent().has_value());
  output_->FinishEmpty();
  const auto event = output_->TakeEvent();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->prompt_logprobs.size(), 1u);
  EXPECT_EQ(event->finish_reason, FinishReason::kLength);
}

}  // namespace
}  // namespace kt
