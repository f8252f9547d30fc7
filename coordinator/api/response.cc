// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/response.h"

#include <algorithm>
#include <numeric>

namespace kt::api {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
  }
  return "";
}

Response::Response(std::shared_ptr<const PreparedCall> call, std::string model,
                   const Tokenizer* tokenizer)
    : call_(std::move(call)),
      model_(std::move(model)),
      tokenizer_(tokenizer),
      choices_(static_cast<size_t>(call_->num_choices())),
      prompt_logprobs_(call_->generations.size()),
      cached_tokens_(call_->generations.size()) {
  const GenerationRequest& g = call_->request.generation;
  if (!g.logprobs || chat()) return;
  for (Choice& choice : choices_)
    choice.completion_logprobs =
        std::make_unique<CompletionLogprobs>(tokenizer_, g.skip_special_tokens);
}

// The prompt's text before the first text of a choice; its log probabilities go to the choice's.
std::string Response::Echo(int prompt, Choice& choice) {
  const auto p = static_cast<size_t>(prompt);
  if (!call_->request.echo) return "";
  if (choice.completion_logprobs != nullptr) {
    choice.completion_logprobs->AppendFirst(call_->generations[p].prompt_ids[0]);
    for (const TokenLogprob& token : prompt_logprobs_[p]) choice.completion_logprobs->Append(token);
  }
  return call_->echo_texts[p];
}

void Response::Add(int prompt, GenerationEvent event, std::vector<Json>* chunks) {
  const ApiRequest& request = call_->request;
  const int index = prompt * request.generation.n + event.choice;
  Choice& choice = choices_[static_cast<size_t>(index)];
  completion_tokens_ += static_cast<int64_t>(event.token_ids.size());
  // An aborted choice's last event does not know.
  int& cached_tokens = cached_tokens_[static_cast<size_t>(prompt)];
  cached_tokens = std::max(cached_tokens, event.cached_tokens);
  if (!event.prompt_logprobs.empty())
    prompt_logprobs_[static_cast<size_t>(prompt)] = std::move(event.prompt_logprobs);

  const bool first = !choice.started;
  choice.started = true;
  std::string text = first ? Echo(prompt, choice) + event.text : std::move(event.text);
  const bool finished = event.finish_reason != FinishReason::kNone;
  choice.finish_reason = event.finish_reason;
  if (!event.matched_stop.empty())
    choice.matched_stop = event.matched_stop;
  else if (event.matched_token)
    choice.matched_stop = *event.matched_token;
  if (choice.completion_logprobs != nullptr) {
    for (const TokenLogprob& token : event.logprobs) choice.completion_logprobs->Append(token);
  }

  if (!request.stream) {
    choice.text += text;
    if (chat())
      std::move(event.logprobs.begin(), event.logprobs.end(),
                std::back_inserter(choice.chat_logprobs));
    return;
  }
  const bool has_logprobs =
      request.generation.logprobs && (!event.logprobs.empty() || (first && request.echo));
  Json logprobs;
  if (has_logprobs)
    logprobs =
        chat() ? ChatLogprobs(*tokenizer_, event.logprobs) : choice.completion_logprobs->Take();
  if (!chat()) {
    if (!text.empty() || has_logprobs || finished)
      chunks->push_back(Chunk(index, choice, text, logprobs, finished));
    return;
  }
  if (first)
    chunks->push_back(
        Chunk(index, choice, {{"role", "assistant"}, {"content", ""}}, nullptr, false));
  if (!text.empty() || has_logprobs)
    chunks->push_back(Chunk(index, choice, {{"content", text}}, logprobs, false));
  if (finished) chunks->push_back(Chunk(index, choice, Json::object(), nullptr, true));
}

Json Response::Head(std::string_view object) const {
  return {{"id", call_->request.id},
          {"object", object},
          {"created", call_->created},
          {"model", model_}};
}

Json Response::Chunk(int index, const Choice& choice, Json content, Json logprobs,
                     bool finished) const {
  Json out = Head(chat() ? "chat.completion.chunk" : "text_completion");
  Json entry = {{"index", index}};
  entry[chat() ? "delta" : "text"] = std::move(content);
  entry["logprobs"] = std::move(logprobs);
  entry["finish_reason"] = finished ? Json(FinishReasonName(choice.finish_reason)) : Json();
  if (finished) entry["matched_stop"] = choice.matched_stop;
  out["choices"] = Json::array({std::move(entry)});
  if (call_->request.continuous_usage)
    out["usage"] = UsageJson();
  else if (call_->request.include_usage)
    out["usage"] = nullptr;
  return out;
}

Json Response::UsageJson() const {
  const int cached_tokens = std::accumulate(cached_tokens_.begin(), cached_tokens_.end(), 0);
  return {{"prompt_tokens", call_->prompt_tokens},
          {"completion_tokens", completion_tokens_},
          {"total_tokens", call_->prompt_tokens + completion_tokens_},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
}

Json Response::UsageChunk() const {
  Json out = Head(chat() ? "chat.completion.chunk" : "text_completion");
  out["choices"] = Json::array();
  out["usage"] = UsageJson();
  return out;
}

Json Response::Whole() {
  Json out = Head(chat() ? "chat.completion" : "text_completion");
  Json& choices = out["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    Json entry = {{"index", i}};
    if (chat()) {
      entry["message"] = {{"role", "assistant"},
                          {"content", choice.text},
                          {"reasoning_content", nullptr},
                          {"tool_calls", nullptr}};
    } else {
      entry["text"] = choice.text;
    }
    if (!call_->request.generation.logprobs)
      entry["logprobs"] = nullptr;
    else
      entry["logprobs"] = chat() ? ChatLogprobs(*tokenizer_, choice.chat_logprobs)
                                 : choice.completion_logprobs->Take();
    entry["finish_reason"] = FinishReasonName(choice.finish_reason);
    entry["matched_stop"] = choice.matched_stop;
    choices.push_back(std::move(entry));
  }
  out["usage"] = UsageJson();
  return out;
}

}  // namespace kt::api
