// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/logprobs.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kt::api {
namespace {

Json ByteArray(const std::string& bytes) {
  Json out = Json::array();
  for (char c : bytes) out.push_back(static_cast<unsigned char>(c));
  return out;
}

Json ChatToken(const Tokenizer& tokenizer, int32_t id, float logprob) {
  return {{"token", TokenText(tokenizer, id)},
          {"logprob", FiniteLogprob(logprob)},
          {"bytes", ByteArray(tokenizer.TokenBytes(id))}};
}

}  // namespace

std::string TokenText(const Tokenizer& tokenizer, int32_t id) {
  return tokenizer.Decode({&id, 1}, /*skip_special_tokens=*/false);
}

float FiniteLogprob(float logprob) { return logprob > kLogprobMin ? logprob : kLogprobMin; }

Json ChatLogprobs(const Tokenizer& tokenizer, const std::vector<TokenLogprob>& tokens) {
  Json content = Json::array();
  for (const TokenLogprob& token : tokens) {
    Json entry = ChatToken(tokenizer, token.token_id, token.logprob);
    Json& top = entry["top_logprobs"] = Json::array();
    for (auto [id, logprob] : token.top) top.push_back(ChatToken(tokenizer, id, logprob));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

void CompletionLogprobs::AppendToken(int32_t id) {
  tokens_.push_back(TokenText(*tokenizer_, id));
  offsets_.push_back(offset_);
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return;
  const std::string bytes = tokenizer_->TokenBytes(id);
  offset_ += std::count_if(bytes.begin(), bytes.end(),
                           [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

void CompletionLogprobs::AppendFirst(int32_t id) {
  AppendToken(id);
  logprobs_.push_back(nullptr);
  top_.push_back(nullptr);
}

void CompletionLogprobs::Append(const TokenLogprob& token) {
  AppendToken(token.token_id);
  logprobs_.push_back(FiniteLogprob(token.logprob));
  Json top = Json::object();
  for (auto [id, logprob] : token.top) {
    std::string text = TokenText(*tokenizer_, id);
    if (!top.contains(text))
      top[text] = FiniteLogprob(logprob);  // parts of characters share a text: the likeliest stays
  }
  top_.push_back(std::move(top));
}

Json CompletionLogprobs::Take() {
  Json out = {{"tokens", std::exchange(tokens_, Json::array())},
              {"token_logprobs", std::exchange(logprobs_, Json::array())},
              {"top_logprobs", std::exchange(top_, Json::array())},
              {"text_offset", std::exchange(offsets_, Json::array())}};
  return out;
}

}  // namespace kt::api
