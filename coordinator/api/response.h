// SPDX-License-Identifier: Apache-2.0
// Events of one call → OpenAI's answers: chat.completion, chat.completion.chunk and
// text_completion.
#ifndef KT_COORDINATOR_API_RESPONSE_H_
#define KT_COORDINATOR_API_RESPONSE_H_

#include <memory>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "coordinator/api/logprobs.h"
#include "coordinator/api/request.h"

namespace kt::api {

std::string_view FinishReasonName(FinishReason reason);  // "stop", "length", "abort"; kNone: ""

// One call's answer while it grows. One thread.
class Response {
 public:
  Response(std::shared_ptr<const PreparedCall> call, std::string model, const Tokenizer* tokenizer);

  // Takes the next event of a prompt. `chunks` gets the stream chunks that show it (none while a
  // character is incomplete).
  void Add(int prompt, GenerationEvent event, std::vector<Json>* chunks);
  // The last chunk with stream_options.include_usage.
  Json UsageChunk() const;
  // The whole answer, once all choices are finished. Only for calls that do not stream.
  Json Whole();

 private:
  struct Choice {
    std::string text;                         // all of it; only when not streaming
    std::vector<TokenLogprob> chat_logprobs;  // all of them; only when not streaming
    std::unique_ptr<CompletionLogprobs> completion_logprobs;
    bool started = false;  // its first chunk (or the echo) has been made
    FinishReason finish_reason = FinishReason::kNone;
    Json matched_stop;
  };

  bool chat() const { return call_->request.endpoint == Endpoint::kChat; }
  Json Head(std::string_view object) const;
  Json Chunk(int index, const Choice& choice, Json content, Json logprobs, bool finished) const;
  Json UsageJson() const;
  std::string Echo(int prompt, Choice& choice);

  std::shared_ptr<const PreparedCall> call_;
  std::string model_;
  const Tokenizer* tokenizer_;
  std::vector<Choice> choices_;
  std::vector<std::vector<TokenLogprob>> prompt_logprobs_;  // one a prompt
  int64_t completion_tokens_ = 0;
  std::vector<int> cached_tokens_;  // one a prompt
};

}  // namespace kt::api

#endif  // KT_COORDINATOR_API_RESPONSE_H_
