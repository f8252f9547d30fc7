// SPDX-License-Identifier: Apache-2.0
// From sampled tokens to events of one choice: text, stop conditions, and when something is sent.
#ifndef KT_COORDINATOR_SCHEDULER_CHOICE_OUTPUT_H_
#define KT_COORDINATOR_SCHEDULER_CHOICE_OUTPUT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/generation/generation.h"
#include "coordinator/scheduler/output_text.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace kt {

// What ends the output of a request and how it is shown; shared by its choices. Immutable; the
// tokenizer outlives it.
struct OutputRules {
  OutputRules(const GenerationRequest& request, const Tokenizer* tokenizer,
              std::span<const int32_t> eos_token_ids, int stream_interval);

  const Tokenizer* tokenizer;
  bool skip_special_tokens;
  StopStrings stops;
  std::vector<int32_t>
      stop_tokens;     // sorted, unique; end tokens of the model included unless ignore_eos
  int min_new_tokens;  // neither stop tokens nor stop strings count in the first so many tokens
  int max_new_tokens;
  int stream_interval;  // tokens an event; the first token is sent at once
};

class ChoiceOutput {
 public:
  // `rules` outlives this.
  ChoiceOutput(const OutputRules* rules, int choice);

  // One more sampled token; not when finished. A stop token is reported as a token and adds no
  // text.
  void Push(int32_t token, std::optional<TokenLogprob> logprob);
  // The end of a choice that samples nothing (max_new_tokens is 0).
  void FinishEmpty();
  void AddCapture(std::shared_ptr<const proto::CaptureResult> capture);
  void AddPromptLogprob(TokenLogprob logprob);

  // What is to be sent now; nullopt: nothing yet.
  std::optional<GenerationEvent> TakeEvent();

  const std::vector<int32_t>& tokens() const { return tokens_; }
  bool finished() const { return finished_; }

 private:
  void Finish(FinishReason reason);

  const OutputRules* rules_;
  StreamDecoder decoder_;
  OutputText text_;
  std::vector<int32_t> tokens_;
  GenerationEvent pending_;
  bool finished_ = false;
};

}  // namespace kt

#endif  // KT_COORDINATOR_SCHEDULER_CHOICE_OUTPUT_H_
