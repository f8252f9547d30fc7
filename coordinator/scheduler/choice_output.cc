// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/choice_output.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kt {
namespace {

std::vector<int32_t> StopTokens(const GenerationRequest& request,
                                std::span<const int32_t> eos_token_ids) {
  std::vector<int32_t> ids = request.stop_token_ids;
  if (!request.ignore_eos) ids.insert(ids.end(), eos_token_ids.begin(), eos_token_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

OutputRules::OutputRules(const GenerationRequest& request, const Tokenizer* tokenizer,
                         std::span<const int32_t> eos_token_ids, int stream_interval)
    : tokenizer(tokenizer),
      skip_special_tokens(request.skip_special_tokens),
      stops(request.stop),
      stop_tokens(StopTokens(request, eos_token_ids)),
      min_new_tokens(request.min_new_tokens),
      max_new_tokens(request.max_new_tokens),
      stream_interval(stream_interval) {}

ChoiceOutput::ChoiceOutput(const OutputRules* rules, int choice)
    : rules_(rules), decoder_(rules->tokenizer, rules->skip_special_tokens), text_(&rules->stops) {
  pending_.choice = choice;
}

void ChoiceOutput::Push(int32_t token, std::optional<TokenLogprob> logprob) {
  tokens_.push_back(token);
  pending_.token_ids.push_back(token);
  if (logprob) pending_.logprobs.push_back(*std::move(logprob));

  const bool may_stop = static_cast<int>(tokens_.size()) > rules_->min_new_tokens;
  if (may_stop &&
      std::binary_search(rules_->stop_tokens.begin(), rules_->stop_tokens.end(), token)) {
    pending_.matched_token = token;
    return Finish(FinishReason::kStop);
  }
  const std::string text = decoder_.Push(token);
  pending_.text += may_stop ? text_.Push(text) : text;
  if (text_.found() != nullptr || static_cast<int>(tokens_.size()) == rules_->max_new_tokens) {
    Finish(FinishReason::kLength);
  }
}

void ChoiceOutput::FinishEmpty() { Finish(FinishReason::kLength); }

// A stop string that was found, or is found in the last bytes, outranks `reason`.
void ChoiceOutput::Finish(FinishReason reason) {
  if (text_.found() == nullptr) pending_.text += text_.Push(decoder_.Flush());
  if (text_.found() != nullptr) {
    pending_.matched_stop = *text_.found();
    pending_.matched_token.reset();
    reason = FinishReason::kStop;
  } else {
    pending_.text += text_.Flush();
  }
  pending_.finish_reason = reason;
  finished_ = true;
}

void ChoiceOutput::AddCapture(std::shared_ptr<const proto::CaptureResult> capture) {
  pending_.captures.push_back(std::move(capture));
}

void ChoiceOutput::AddPromptLogprob(TokenLogprob logprob) {
  pending_.prompt_logprobs.push_back(std::move(logprob));
}

std::optional<GenerationEvent> ChoiceOutput::TakeEvent() {
  const int new_tokens = static_cast<int>(pending_.token_ids.size());
  const bool first = new_tokens > 0 && tokens_.size() == pending_.token_ids.size();
  if (!finished_ && !first && new_tokens < rules_->stream_interval) return std::nullopt;
  GenerationEvent next;
  next.choice = pending_.choice;
  return std::exchange(pending_, std::move(next));
}

}  // namespace kt
