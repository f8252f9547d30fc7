// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/request_parser.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "coordinator/api/chat_messages.h"
#include "coordinator/api/request_fields.h"

namespace kt::api {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr float kGreedyBelow = 1e-6f;  // temperatures below are 0

constexpr std::array<const char*, 13> kUnsupported = {
    "tools", "functions",  "function_call", "lora_path",      "regex",
    "ebnf",  "stop_regex", "json_schema",   "structural_tag", "suffix",
    "audio", "prediction", "no_stop_trim"};

absl::Status UnsupportedField(std::string_view field, const Json& value) {
  return WithCode(FieldError(field, "isn't available in this release, leave it out (got {})",
                             JsonExcerpt(value)),
                  kUnsupportedParameter);
}

bool IsEmpty(const Json& value) { return value.empty() || value == "" || value == false; }

void RefuseUnsupported(RequestFields& fields) {
  for (const char* name : kUnsupported) {
    if (const Json* value = fields.Find(name); value != nullptr && !IsEmpty(*value))
      fields.Fail(UnsupportedField(name, *value));
  }
  if (const Json* value = fields.Find("tool_choice"); value != nullptr && *value != "none") {
    fields.Fail(UnsupportedField("tool_choice", *value));
  }
  if (const Json* value = fields.Find("response_format"); value != nullptr) {
    auto type = value->is_object() ? value->find("type") : value->end();
    if (!value->is_object() || type == value->end()) {
      fields.Fail(FieldError("response_format", "must be an object with a type, got {}",
                             DescribeValue(*value)));
    } else if (*type != "text") {
      fields.Fail(UnsupportedField("response_format", *value));
    }
  }
  if (auto best_of = fields.Int("best_of", 1, kInt32Max); best_of.value_or(1) > 1)
    fields.Fail(UnsupportedField("best_of", *best_of));
}

void ReadStop(RequestFields& fields, std::vector<std::string>* stop) {
  const Json* value = fields.Find("stop");
  if (value == nullptr) return;
  const Json list = value->is_string() ? Json::array({*value}) : *value;
  if (!list.is_array())
    return fields.Fail(
        FieldError("stop", "must be a string or a list of strings, got {}", DescribeValue(*value)));
  if (list.size() > kStopStringsMax) {
    return fields.Fail(
        FieldError("stop", "must have at most {} strings, got {}", kStopStringsMax, list.size()));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = value->is_string() ? "stop" : fmt::format("stop[{}]", i);
    if (!list[i].is_string())
      return fields.Fail(
          WithParam(FieldError(name, "must be a string, got {}", DescribeValue(list[i])), "stop"));
    const auto& text = list[i].get_ref<const std::string&>();
    if (text.empty() || text.size() > kStopBytesMax) {
      return fields.Fail(WithParam(
          FieldError(name, "must have 1 to {} bytes, got {}", kStopBytesMax, text.size()), "stop"));
    }
    stop->push_back(text);
  }
}

void ReadLogitBias(RequestFields& fields, int vocab_size,
                   std::vector<std::pair<int32_t, float>>* bias) {
  const Json* value = fields.Find("logit_bias");
  if (value == nullptr) return;
  if (!value->is_object()) {
    return fields.Fail(FieldError(
        "logit_bias", "must be an object of token ids and numbers, got {}", DescribeValue(*value)));
  }
  std::vector<bool> seen(static_cast<size_t>(vocab_size));
  for (const auto& [key, number] : value->items()) {
    int32_t id = -1;
    auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocab_size) {
      return fields.Fail(FieldError("logit_bias",
                                    "must have token ids between 0 and {} as keys, got {}",
                                    vocab_size - 1, JsonExcerpt(key)));
    }
    double x = number.is_number() ? number.get<double>() : NAN;
    if (!(x >= -100 && x <= 100)) {
      return fields.Fail(FieldError(
          "logit_bias", "must have numbers between -100 and 100 as values, got {} for {}",
          DescribeValue(number), id));
    }
    if (seen[static_cast<size_t>(id)])
      return fields.Fail(FieldError("logit_bias", "has the token id {} twice", id));
    seen[static_cast<size_t>(id)] = true;
    bias->emplace_back(id, static_cast<float>(x));
  }
}

void ReadSampling(RequestFields& fields, const ModelFacts& facts, const ApiDefaults& defaults,
                  SamplingParams* s) {
  s->temperature = fields.Number("temperature", 0, 2).value_or(defaults.temperature.value_or(1.0f));
  if (s->temperature < kGreedyBelow) s->temperature = 0;
  s->top_p =
      fields.Number("top_p", 0, 1, /*above_min=*/true).value_or(defaults.top_p.value_or(1.0f));
  s->top_k = std::max(
      0, static_cast<int>(fields.Int("top_k", -1, kInt32Max).value_or(defaults.top_k.value_or(0))));
  s->min_p = fields.Number("min_p", 0, 1).value_or(defaults.min_p.value_or(0.0f));
  s->presence_penalty = fields.Number("presence_penalty", -2, 2).value_or(0.0f);
  s->frequency_penalty = fields.Number("frequency_penalty", -2, 2).value_or(0.0f);
  s->repetition_penalty = fields.Number("repetition_penalty", 0, 2, /*above_min=*/true)
                              .value_or(defaults.repetition_penalty.value_or(1.0f));
  if (auto seed = fields.Int("seed", INT64_MIN, INT64_MAX)) s->seed = static_cast<uint64_t>(*seed);
  ReadLogitBias(fields, facts.vocab_size, &s->logit_bias);
}

void ReadStreamOptions(RequestFields& fields, ApiRequest* request) {
  request->stream = fields.Bool("stream", false);
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object())
    return fields.Fail(
        FieldError("stream_options", "must be an object, got {}", DescribeValue(*options)));
  if (!request->stream)
    return fields.Fail(FieldError("stream_options", "is only allowed when stream is true"));
  RequestFields inner(*options);
  request->include_usage = inner.Bool("include_usage", false);
  request->continuous_usage = inner.Bool("continuous_usage_stats", false);
  if (!inner.status().ok())
    fields.Fail(WithParam(Annotate(inner.status(), "stream_options"), "stream_options"));
}

// What chat and completion requests share. `max_tokens_min` is 0 where a prompt may be run alone.
void ReadCommon(RequestFields& fields, const ModelFacts& facts, const ApiDefaults& defaults,
                int max_tokens_min, ApiRequest* request) {
  GenerationRequest& g = request->generation;
  RefuseUnsupported(fields);
  fields.String("model", 1024);
  fields.String("user", 1024);
  if (auto rid = fields.String("rid", kRequestIdBytesMax)) {
    if (rid->empty()) fields.Fail(FieldError("rid", "must not be empty"));
    request->id = *std::move(rid);
  } else {
    request->id = NewId(request->endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-");
  }
  g.n = static_cast<int>(fields.Int("n", 1, kChoicesMax).value_or(1));
  auto max_tokens = fields.Int("max_tokens", max_tokens_min, kInt32Max);
  if (auto newer = fields.Int("max_completion_tokens", max_tokens_min, kInt32Max))
    max_tokens = newer;
  if (max_tokens) request->max_tokens = static_cast<int>(*max_tokens);
  g.min_new_tokens = static_cast<int>(fields.Int("min_tokens", 0, kInt32Max).value_or(0));
  ReadSampling(fields, facts, defaults, &g.sampling);
  ReadStop(fields, &g.stop);
  if (const Json* ids = fields.Find("stop_token_ids")) {
    auto read = ReadTokenIds(*ids, "stop_token_ids", facts.vocab_size, 0, kStopTokensMax);
    if (read.ok())
      g.stop_token_ids = *std::move(read);
    else
      fields.Fail(WithParam(read.status(), "stop_token_ids"));
  }
  g.ignore_eos = fields.Bool("ignore_eos", false);
  g.skip_special_tokens = fields.Bool("skip_special_tokens", true);
  ReadStreamOptions(fields, request);
}

void ReadChatLogprobs(RequestFields& fields, GenerationRequest* g) {
  g->logprobs = fields.Bool("logprobs", false);
  g->top_logprobs = static_cast<int>(fields.Int("top_logprobs", 0, kTopLogprobsMax).value_or(0));
  if (g->top_logprobs > 0 && !g->logprobs)
    fields.Fail(FieldError("top_logprobs", "is only allowed when logprobs is true"));
}

// An integer is the number of alternatives, 0 included; true means none beside the token itself.
void ReadCompletionLogprobs(RequestFields& fields, GenerationRequest* g) {
  const Json* value = fields.Find("logprobs");
  if (value == nullptr) return;
  if (value->is_boolean()) {
    g->logprobs = value->get<bool>();
  } else if (auto top = fields.Int("logprobs", 0, kTopLogprobsMax)) {
    g->logprobs = true;
    g->top_logprobs = static_cast<int>(*top);
  }
}

// Puts what a template sees into request->template_variables.
void ReadTemplateVariables(RequestFields& fields, const Json& body, ApiRequest* request) {
  Json& variables = request->template_variables;
  variables = Json::object();
  if (const Json* kwargs = fields.Find("chat_template_kwargs")) {
    if (!kwargs->is_object()) {
      return fields.Fail(
          FieldError("chat_template_kwargs", "must be an object, got {}", DescribeValue(*kwargs)));
    }
    for (const char* reserved : {"messages", "tools", "add_generation_prompt"}) {
      if (kwargs->contains(reserved))
        return fields.Fail(FieldError("chat_template_kwargs", "must not set {}", reserved));
    }
    variables = *kwargs;
  }
  if (auto effort = fields.String("reasoning_effort", 64))
    variables["reasoning_effort"] = *std::move(effort);
  auto messages = ReadChatMessages(body.contains("messages") ? body["messages"] : Json());
  if (!messages.ok()) return fields.Fail(messages.status());
  if (fields.Bool("continue_final_message", false)) {
    if (messages->back()["role"] != "assistant" || messages->size() < 2) {
      return fields.Fail(FieldError("continue_final_message",
                                    "needs an assistant message at the end, after another one"));
    }
    request->answer_prefix = messages->back()["content"].get<std::string>();
    messages->erase(messages->size() - 1);
  }
  variables["messages"] = *std::move(messages);
  variables["tools"] = nullptr;
  variables["add_generation_prompt"] = true;
}

bool IsWordByte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '+';
}

// Puts quotes around what stands for a number and is no finite one. `values` becomes an upper bound
// of the JSON values in the text.
std::string QuoteNonFinite(std::string_view text, size_t* values) {
  std::string out;
  size_t copied = 0;  // text before it is in `out`
  *values = 1;
  for (size_t i = 0; i < text.size();) {
    char c = text[i];
    if (c == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
      ++i;
    } else if (IsWordByte(c)) {
      size_t begin = i;
      while (i < text.size() && IsWordByte(text[i])) ++i;
      std::string word(text.substr(begin, i - begin));
      char* end = nullptr;
      double x = std::strtod(word.c_str(), &end);
      if (*end != '\0' || std::isfinite(x)) continue;
      out.append(text, copied, begin - copied).append("\"").append(word).append("\"");
      copied = i;
    } else {
      *values += c == ',' || c == '[' || c == '{';
      ++i;
    }
  }
  return out.append(text, std::min(copied, text.size()), std::string_view::npos);
}

absl::StatusOr<ApiRequest> Finish(const RequestFields& fields, ApiRequest request) {
  if (!fields.status().ok()) return fields.status();
  return request;
}

}  // namespace

absl::StatusOr<std::vector<Prompt>> ReadPrompts(const Json& value, std::string_view param,
                                                int vocab_size) {
  const auto is_ids = [](const Json& list) {
    return list.is_array() && !list.empty() && list[0].is_number();
  };
  std::vector<Prompt> prompts;
  const auto read = [&](const Json& item, const std::string& name) -> absl::Status {
    if (item.is_string()) {
      if (item.get_ref<const std::string&>().empty()) return FieldError(name, "must not be empty");
      prompts.emplace_back(item.get<std::string>());
      return absl::OkStatus();
    }
    if (!item.is_array())
      return FieldError(name, "must be a string or a list of token ids, got {}",
                        DescribeValue(item));
    KT_ASSIGN_OR_RETURN(auto ids, ReadTokenIds(item, name, vocab_size, 1, kJsonValuesMax));
    prompts.emplace_back(std::move(ids));
    return absl::OkStatus();
  };
  absl::Status status;
  if (!value.is_array() || is_ids(value)) {
    status = read(value, std::string(param));
  } else if (value.empty() || value.size() > kPromptsMax) {
    status = FieldError(param, "must have 1 to {} entries, got {}", kPromptsMax, value.size());
  } else {
    for (size_t i = 0; i < value.size() && status.ok(); ++i)
      status = read(value[i], fmt::format("{}[{}]", param, i));
  }
  if (!status.ok()) return WithParam(status, param);
  return prompts;
}

absl::StatusOr<ApiRequest> ReadChatRequest(const Json& body, const ModelFacts& facts,
                                           const ApiDefaults& defaults) {
  ApiRequest request;
  request.endpoint = Endpoint::kChat;
  RequestFields fields(body);
  ReadCommon(fields, facts, defaults, /*max_tokens_min=*/1, &request);
  ReadChatLogprobs(fields, &request.generation);
  ReadTemplateVariables(fields, body, &request);
  return Finish(fields, std::move(request));
}

absl::StatusOr<ApiRequest> ReadCompletionRequest(const Json& body, const ModelFacts& facts,
                                                 const ApiDefaults& defaults) {
  ApiRequest request;
  request.endpoint = Endpoint::kCompletion;
  RequestFields fields(body);
  request.echo = fields.Bool("echo", false);
  ReadCommon(fields, facts, defaults, /*max_tokens_min=*/request.echo ? 0 : 1, &request);
  GenerationRequest& g = request.generation;
  ReadCompletionLogprobs(fields, &g);
  g.prompt_logprobs = request.echo && (g.logprobs || request.max_tokens == 0);
  auto prompts =
      ReadPrompts(body.contains("prompt") ? body["prompt"] : Json(), "prompt", facts.vocab_size);
  if (!prompts.ok()) {
    fields.Fail(prompts.status());
  } else if (prompts->size() * static_cast<size_t>(g.n) > kCallChoicesMax) {
    fields.Fail(FieldError("n", "times the number of prompts must be at most {}, got {} x {}",
                           kCallChoicesMax, g.n, prompts->size()));
  } else {
    request.prompts = *std::move(prompts);
  }
  return Finish(fields, std::move(request));
}

absl::Status ReadBody(std::string_view body, const std::function<absl::Status(const Json&)>& read) {
  size_t values = 0;
  std::string quoted = QuoteNonFinite(body, &values);
  if (values > kJsonValuesMax) {
    return WithCode(
        InvalidArgument("request body has more than {} JSON values; send fewer or shorter lists",
                        kJsonValuesMax),
        kInvalidJson);
  }
  auto json = ParseJson(body);
  if (json.ok()) {
    if (json->is_object()) return read(*json);
    return WithCode(
        InvalidArgument("request body must be a JSON object, got {}", DescribeValue(*json)),
        kInvalidJson);
  }
  if (quoted.size() != body.size()) {
    auto readable = ParseJson(quoted);
    if (readable.ok() && readable->is_object()) KT_RETURN_IF_ERROR(read(*readable));
  }
  return WithCode(Annotate(json.status(), "request body"), kInvalidJson);
}

absl::StatusOr<ApiRequest> ParseRequest(Endpoint endpoint, std::string_view body,
                                        const ModelFacts& facts, const ApiDefaults& defaults) {
  ApiRequest request;
  KT_RETURN_IF_ERROR(ReadBody(body, [&](const Json& object) -> absl::Status {
    KT_ASSIGN_OR_RETURN(request, endpoint == Endpoint::kChat
                                     ? ReadChatRequest(object, facts, defaults)
                                     : ReadCompletionRequest(object, facts, defaults));
    return absl::OkStatus();
  }));
  return request;
}

}  // namespace kt::api
