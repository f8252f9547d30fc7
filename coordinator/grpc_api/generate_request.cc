// SPDX-License-Identifier: Apache-2.0
#include "coordinator/grpc_api/generate_request.h"

#include <cmath>
#include <cstdlib>

#include "coordinator/api/api_error.h"
#include "coordinator/api/logprobs.h"
#include "coordinator/api/request_parser.h"

namespace kt::grpc_api {
namespace {

// The shortest decimal that reads back as `x`, so that messages show 0.7 as it was written; a text
// where JSON has no such number.
Json Number(float x) {
  const std::string text = fmt::format("{}", x);
  return std::isfinite(x) ? Json(std::strtod(text.c_str(), nullptr)) : Json(text);
}

Json CommonFields(const api::GenerateRequest& r) {
  Json body = Json::object();
  if (r.has_max_tokens()) body["max_tokens"] = r.max_tokens();
  if (r.has_n()) body["n"] = r.n();
  if (r.has_temperature()) body["temperature"] = Number(r.temperature());
  if (r.has_top_p()) body["top_p"] = Number(r.top_p());
  if (r.has_top_k()) body["top_k"] = r.top_k();
  if (r.has_min_p()) body["min_p"] = Number(r.min_p());
  if (r.has_presence_penalty()) body["presence_penalty"] = Number(r.presence_penalty());
  if (r.has_frequency_penalty()) body["frequency_penalty"] = Number(r.frequency_penalty());
  if (r.has_repetition_penalty()) body["repetition_penalty"] = Number(r.repetition_penalty());
  if (r.has_seed()) body["seed"] = r.seed();
  for (const std::string& stop : r.stop()) body["stop"].push_back(stop);
  for (const auto& [id, bias] : r.logit_bias())
    body["logit_bias"][std::to_string(id)] = Number(bias);
  body["ignore_eos"] = r.ignore_eos();
  if (!r.request_id().empty()) body["rid"] = r.request_id();
  return body;
}

}  // namespace

absl::StatusOr<api::ApiRequest> ReadGenerateRequest(const api::GenerateRequest& r,
                                                    const api::ModelFacts& facts,
                                                    const api::ApiDefaults& defaults) {
  Json body = CommonFields(r);
  if (r.input_case() == api::GenerateRequest::kChat) {
    if (r.echo()) return api::FieldError("echo", "is only allowed with prompt and tokens");
    if (r.has_logprobs()) body["logprobs"] = r.logprobs();
    if (r.has_top_logprobs()) body["top_logprobs"] = r.top_logprobs();
    body["messages"] = Json::array();
    for (const api::Message& message : r.chat().messages()) {
      body["messages"].push_back({{"role", message.role()}, {"content", message.content()}});
    }
    if (!r.chat().template_kwargs_json().empty()) {
      auto kwargs = ParseJson(r.chat().template_kwargs_json());
      if (!kwargs.ok())
        return api::FieldError("template_kwargs_json", "must be a JSON object: {}",
                               kt::Message(kwargs.status()));
      body["chat_template_kwargs"] = *std::move(kwargs);
    }
    return api::ReadChatRequest(body, facts, defaults);
  }
  if (r.input_case() == api::GenerateRequest::INPUT_NOT_SET)
    return api::FieldError("input", "must be chat, prompt or tokens, got nothing");
  body["echo"] = r.echo();
  if (r.logprobs())
    body["logprobs"] = r.top_logprobs();  // a completion's logprobs is the number of alternatives
  else if (r.top_logprobs() != 0)
    return api::FieldError("top_logprobs", "is only allowed when logprobs is true");
  if (r.input_case() == api::GenerateRequest::kPrompt)
    body["prompt"] = r.prompt();
  else
    body["prompt"] = std::vector<int32_t>(r.tokens().ids().begin(), r.tokens().ids().end());
  return api::ReadCompletionRequest(body, facts, defaults);
}

api::TokenLogprobs ToProto(const TokenLogprob& token, const Tokenizer& tokenizer) {
  api::TokenLogprobs out;
  out.set_token_id(token.token_id);
  out.set_token(api::TokenText(tokenizer, token.token_id));
  out.set_logprob(api::FiniteLogprob(token.logprob));
  for (auto [id, logprob] : token.top) {
    out.add_top_ids(id);
    out.add_top_logprobs(api::FiniteLogprob(logprob));
  }
  return out;
}

}  // namespace kt::grpc_api
