// SPDX-License-Identifier: Apache-2.0
// The contract between the front ends (HTTP, gRPC) and the scheduler: one request in, events out.
#ifndef KT_COORDINATOR_GENERATION_GENERATION_H_
#define KT_COORDINATOR_GENERATION_GENERATION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/step.pb.h"

namespace kt {

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  int top_k = 0;             // 0: all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::optional<uint64_t> seed;  // absent: drawn by the scheduler
  std::vector<std::pair<int32_t, float>> logit_bias;
};

// Already validated by the front end (types, ranges, prompt + max_new_tokens <= context); the
// scheduler checks against its own pools.
struct GenerationRequest {
  std::string id;                   // unique among live requests
  std::vector<int32_t> prompt_ids;  // >= 1
  SamplingParams sampling;
  int n = 1;                // choices; the prompt is computed once
  int max_new_tokens = 16;  // >= 0; 0 only with prompt logprobs or capture: the prompt alone is run
  int min_new_tokens = 0;
  std::vector<std::string> stop;        // stop strings, cut from the text
  std::vector<int32_t> stop_token_ids;  // beside the model's own end tokens
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool logprobs = false;
  int top_logprobs = 0;
  bool prompt_logprobs = false;  // of every prompt token but the first
  proto::Capture capture;        // selftest; results come with the events
};

struct TokenLogprob {
  int32_t token_id = -1;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;  // descending
};

enum class FinishReason { kNone, kStop, kLength, kAbort };

struct GenerationEvent {
  int choice = 0;
  std::string
      text;  // whole characters only; may be empty while a character or stop string is pending
  std::vector<int32_t> token_ids;             // new tokens
  std::vector<TokenLogprob> logprobs;         // one for each new token, if asked for
  std::vector<TokenLogprob> prompt_logprobs;  // in the first event of choice 0, if asked for: entry
                                              // i is of prompt_ids[i+1]
  std::vector<std::shared_ptr<const proto::CaptureResult>>
      captures;                                      // of the steps since the last event, in order
  FinishReason finish_reason = FinishReason::kNone;  // set in the last event of a choice
  std::string matched_stop;                          // stop string, or empty
  std::optional<int32_t> matched_token;              // stop token
  int cached_tokens = 0;  // of the prompt, found in the prefix cache; the same in every event
  absl::Status error;     // not ok: the request has failed; the last event of all choices
};

// Receives a request's events. Called on the scheduler's thread: must return at once, may not call
// back into the Generator.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  virtual void OnEvent(GenerationEvent event) = 0;
};

// Thread-safe. After Submit returns OK, every choice ends in exactly one event with a finish_reason
// or the request in one with an error, unless it is cancelled; after Cancel no further event is
// promised and the sink is released within one step.
class Generator {
 public:
  virtual ~Generator() = default;
  // InvalidArgument: cannot ever run (prompt larger than the pool). ResourceExhausted: queue full.
  // Unavailable: not ready or draining.
  virtual absl::Status Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) = 0;
  virtual void Cancel(const std::string& request_id) = 0;
  // What is submitted after the call finds nothing of finished requests in the prefix cache.
  virtual void FlushCache() = 0;
};

}  // namespace kt

#endif  // KT_COORDINATOR_GENERATION_GENERATION_H_
