// SPDX-License-Identifier: Apache-2.0
// OpenAI's two shapes of log probabilities. A token that is part of a character shows as U+FFFD;
// "bytes" has its real bytes.
#ifndef KT_COORDINATOR_API_LOGPROBS_H_
#define KT_COORDINATOR_API_LOGPROBS_H_

#include <string>
#include <vector>

#include "common/base/json.h"
#include "coordinator/generation/generation.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace kt::api {

// What stands for -infinity, which JSON lacks.
inline constexpr float kLogprobMin = -9999.0f;

// The token as text.
std::string TokenText(const Tokenizer& tokenizer, int32_t id);
// A log probability as JSON can show it: finite, at least kLogprobMin.
float FiniteLogprob(float logprob);

// {"content": [{token, logprob, bytes, top_logprobs: [{token, logprob, bytes}]}], "refusal": null}
Json ChatLogprobs(const Tokenizer& tokenizer, const std::vector<TokenLogprob>& tokens);

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, of the tokens appended since the
// last Take().
class CompletionLogprobs {
 public:
  CompletionLogprobs(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}
  void AppendFirst(int32_t id);  // of an echoed prompt: has no probability
  void Append(const TokenLogprob& token);
  Json Take();

 private:
  void AppendToken(int32_t id);

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  int64_t offset_ = 0;  // characters of the text before the next token
  Json tokens_ = Json::array(), logprobs_ = Json::array(), top_ = Json::array(),
       offsets_ = Json::array();
};

}  // namespace kt::api

#endif  // KT_COORDINATOR_API_LOGPROBS_H_
