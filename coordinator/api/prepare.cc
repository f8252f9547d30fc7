// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/prepare.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <random>

#include "coordinator/api/api_error.h"

namespace kt::api {
namespace {

// Normalisers may shorten text, by composing characters: no more than this factor.
constexpr size_t kNormalizationShrinkMax = 4;

absl::Status TooLong(std::string_view param, const ModelFacts& facts, std::string_view tokens) {
  return WithCode(
      WithParam(InvalidArgument(
                    "the model's maximum context length is {} tokens, but {} has {}; shorten it",
                    facts.context_length, param, tokens),
                param),
      kContextLengthExceeded);
}

// Sets max_new_tokens of `g` from what the request asks for and what the context leaves.
absl::Status ResolveMaxTokens(const ApiRequest& request, std::string_view param,
                              const ModelFacts& facts, GenerationRequest* g) {
  const int prompt = static_cast<int>(g->prompt_ids.size());
  const int left = facts.context_length - prompt;
  const bool prompt_alone = request.max_tokens == 0;
  if (left < (prompt_alone ? 0 : 1)) {
    return TooLong(
        param, facts,
        fmt::format("{} tokens{}", prompt, left == 0 ? " and leaves no room for an answer" : ""));
  }
  if (request.max_tokens > left) {
    return WithCode(
        WithParam(InvalidArgument("the model's maximum context length is {} tokens, but {} were "
                                  "requested ({} in the {}, {} in the "
                                  "answer); reduce max_tokens to at most {} or shorten the {}",
                                  facts.context_length, int64_t{prompt} + *request.max_tokens,
                                  prompt, param, *request.max_tokens, left, param),
                  "max_tokens"),
        kContextLengthExceeded);
  }
  const int fallback =
      request.endpoint == Endpoint::kChat ? left : std::min(left, kCompletionTokensDefault);
  g->max_new_tokens = request.max_tokens.value_or(fallback);
  if (g->min_new_tokens > g->max_new_tokens) {
    return FieldError("min_tokens", "must be at most the {} tokens of the answer, got {}",
                      g->max_new_tokens, g->min_new_tokens);
  }
  return absl::OkStatus();
}

}  // namespace

std::string NewId(std::string_view prefix) {
  static std::mutex mutex;
  static std::mt19937_64 engine = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::lock_guard lock(mutex);
  return fmt::format("{}{:016x}{:08x}", prefix, engine(), engine() >> 32);
}

size_t LongestTokenBytes(const Tokenizer& tokenizer) {
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    longest = std::max(longest, tokenizer.TokenBytes(id).size());
  return longest;
}

absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& text, std::string_view param,
                                              const Tokenizer& tokenizer, const ModelFacts& facts,
                                              size_t token_bytes_max) {
  const size_t tokens_min = text.size() / token_bytes_max / kNormalizationShrinkMax;
  if (tokens_min > static_cast<size_t>(facts.context_length)) {
    return TooLong(param, facts,
                   fmt::format("at least {} tokens ({} bytes)", tokens_min, text.size()));
  }
  auto ids = tokenizer.Encode(text);
  if (!ids.ok()) return WithParam(Annotate(ids.status(), param), param);
  // A tokenizer may know more tokens than the model has, reserved ones for instance.
  auto outside =
      std::find_if(ids->begin(), ids->end(), [&](int id) { return id >= facts.vocab_size; });
  if (outside != ids->end()) {
    return WithParam(
        InvalidArgument(
            "{}: the token {:?} has the id {}, which the model lacks: its ids end at {}", param,
            tokenizer.TokenBytes(*outside), *outside, facts.vocab_size - 1),
        param);
  }
  return ids;
}

absl::StatusOr<std::string> RenderPrompt(const ApiRequest& request, PromptRenderer& renderer) {
  auto text = renderer.Render(request.template_variables);
  if (text.ok()) return *text + request.answer_prefix;
  if (absl::IsUnavailable(text.status())) return text.status();
  return WithCode(WithParam(InvalidArgument("messages: {}", Message(text.status())), "messages"),
                  kTemplateError);
}

absl::StatusOr<PreparedCall> Prepare(ApiRequest request, PromptRenderer& renderer,
                                     const Tokenizer& tokenizer, const ModelFacts& facts,
                                     size_t token_bytes_max) {
  std::string_view param = "prompt";
  if (request.endpoint == Endpoint::kChat) {
    KT_ASSIGN_OR_RETURN(std::string text, RenderPrompt(request, renderer));
    request.prompts.emplace_back(std::move(text));
    param = "messages";
  }
  PreparedCall call;
  call.created = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  for (size_t p = 0; p < request.prompts.size(); ++p) {
    const std::string name =
        request.prompts.size() == 1 ? std::string(param) : fmt::format("{}[{}]", param, p);
    GenerationRequest g = request.generation;
    g.id = request.prompts.size() == 1 ? request.id : fmt::format("{}-{}", request.id, p);
    if (auto* text = std::get_if<std::string>(&request.prompts[p])) {
      KT_ASSIGN_OR_RETURN(g.prompt_ids, Tokenize(*text, name, tokenizer, facts, token_bytes_max));
    } else {
      g.prompt_ids = std::get<std::vector<int32_t>>(request.prompts[p]);
    }
    if (g.prompt_ids.empty())
      return WithParam(FieldError(name, "must not be empty: it has no tokens"), param);
    if (absl::Status status = ResolveMaxTokens(request, name, facts, &g); !status.ok())
      return status;
    if (request.echo) {
      auto* text = std::get_if<std::string>(&request.prompts[p]);
      call.echo_texts.push_back(
          text != nullptr ? *text : tokenizer.Decode(g.prompt_ids, g.skip_special_tokens));
    }
    call.prompt_tokens += static_cast<int>(g.prompt_ids.size());
    call.generations.push_back(std::move(g));
  }
  request.prompts.clear();
  call.request = std::move(request);
  return call;
}

}  // namespace kt::api
