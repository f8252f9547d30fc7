// SPDX-License-Identifier: Apache-2.0
// One API call between its JSON (or proto) and the scheduler.
#ifndef KT_COORDINATOR_API_REQUEST_H_
#define KT_COORDINATOR_API_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/json.h"
#include "coordinator/generation/generation.h"

namespace kt::api {

// Facts of the loaded model that requests are checked against.
struct ModelFacts {
  std::string name;        // id in /v1/models, "model" of every answer
  int context_length = 0;  // tokens, prompt and answer together
  int vocab_size = 0;      // token ids are below it
  int64_t created = 0;     // Unix seconds, of /v1/models
};

// Used where a request names no value: generation_config.json, or nothing with --sampling-defaults
// openai.
struct ApiDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
};

enum class Endpoint { kChat, kCompletion };

using Prompt = std::variant<std::string, std::vector<int32_t>>;

// Every field is checked; what needs the tokenizer (prompt length) is not.
struct ApiRequest {
  Endpoint endpoint = Endpoint::kCompletion;
  std::string id;               // of the answer: the client's "rid" or drawn
  Json template_variables;      // chat: for PromptRenderer
  std::string answer_prefix;    // chat with continue_final_message: the beginning of the answer
  std::vector<Prompt> prompts;  // completion: at least one
  GenerationRequest
      generation;  // sampling and limits; id, prompt_ids and max_new_tokens follow in Prepare()
  std::optional<int> max_tokens;  // absent: 16 for a completion, the rest of the context for chat
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // usage in every chunk
  bool echo = false;              // completion
};

// An ApiRequest made ready for the scheduler.
struct PreparedCall {
  ApiRequest request;
  int64_t created = 0;  // Unix seconds
  std::vector<GenerationRequest>
      generations;  // one a prompt; choice c of prompt p is choice p * n + c of the answer
  std::vector<std::string> echo_texts;  // one a prompt, with echo only
  int prompt_tokens = 0;                // of all prompts
  int num_choices() const { return static_cast<int>(generations.size()) * request.generation.n; }
};

// A new identifier: prefix and 24 random hexadecimal digits. Thread-safe.
std::string NewId(std::string_view prefix);

}  // namespace kt::api

#endif  // KT_COORDINATOR_API_REQUEST_H_
