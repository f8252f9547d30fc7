// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/bpe_tokenizer.h"

#include <utility>

#include "common/base/status.h"
#include "coordinator/tokenizer/byte_alphabet.h"
#include "coordinator/tokenizer/utf8.h"

namespace kt {

absl::StatusOr<BpeTokenizer::Token*> BpeTokenizer::NewToken(std::string_view name, int32_t id) {
  if (id < 0 || id > kIdMax)
    return InvalidArgument("token {:?}: its id must be between 0 and {}, got {}", name, kIdMax, id);
  if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
  Token& token = tokens_[static_cast<size_t>(id)];
  if (token.used) return InvalidArgument("token {:?}: id {} is taken by another token", name, id);
  token.used = true;
  return &token;
}

absl::Status BpeTokenizer::AddSpelledToken(const std::string& spelling, int32_t id) {
  if (auto bytes = BytesOfSpelling(spelling)) return AddByteToken(*std::move(bytes), id);
  KT_ASSIGN_OR_RETURN(Token * token, NewToken(spelling, id));
  token->bytes = spelling;
  if (!ids_by_name_.emplace(spelling, id).second)
    return InvalidArgument("token {:?} is in the vocabulary twice", spelling);
  return absl::OkStatus();
}

absl::Status BpeTokenizer::AddByteToken(std::string bytes, int32_t id) {
  KT_ASSIGN_OR_RETURN(Token * token, NewToken(bytes, id));
  token->bytes = bytes;
  if (!bpe_.AddToken(std::move(bytes), id))
    return InvalidArgument("token {:?} is in the vocabulary twice", token->bytes);
  return absl::OkStatus();
}

absl::Status BpeTokenizer::AddAddedTokens(std::vector<AddedToken> added_tokens) {
  RegexRun run(0);
  for (AddedToken& added : added_tokens) {
    if (added.content.empty()) continue;
    if (FindInvalidUtf8(added.content) != std::string::npos)
      return InvalidArgument("added token {:?} is not UTF-8", added.content);
    Token* token = nullptr;
    if (auto id = TokenId(added.content)) {
      if (*id != added.id)
        return InvalidArgument("added token {:?}: its id is {}, the vocabulary has {}",
                               added.content, added.id, *id);
      token = &tokens_[static_cast<size_t>(*id)];
    } else {
      KT_ASSIGN_OR_RETURN(token, NewToken(added.content, added.id));
    }
    std::string text = added.content;
    if (added.normalized) {
      KT_ASSIGN_OR_RETURN(text, normalizer_.Normalize(added.content, &run));
    }
    token->special = added.special;
    token->bytes = BytesOfSpelling(text).value_or(text);  // decoded like any other token
    ids_by_name_[added.content] = added.id;
    AddedTokenFinder& finder = added.normalized ? normalized_added_tokens_ : raw_added_tokens_;
    finder.Add(text, std::move(added));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> BpeTokenizer::Encode(std::string_view text) const {
  if (text.size() > INT32_MAX / 4)
    return InvalidArgument("text of {} bytes is longer than the {} a tokenizer takes", text.size(),
                           INT32_MAX / 4);
  if (size_t at = FindInvalidUtf8(text); at != std::string_view::npos)
    return InvalidArgument("text is not valid UTF-8 at byte {}", at);
  std::vector<int32_t> ids;
  Bpe::Scratch scratch;
  RegexRun run(text.size());
  for (const auto& [raw, raw_token] : raw_added_tokens_.Split(text)) {
    if (raw_token != nullptr) {
      ids.push_back(raw_token->id);
      continue;
    }
    KT_ASSIGN_OR_RETURN(std::string normalized, normalizer_.Normalize(raw, &run));
    for (const auto& [section, token] : normalized_added_tokens_.Split(normalized)) {
      if (token != nullptr) {
        ids.push_back(token->id);
        continue;
      }
      KT_ASSIGN_OR_RETURN(Pieces pieces, pre_tokenizer_.Split(section, &run));
      for (std::string_view piece : pieces.pieces) bpe_.Encode(piece, &scratch, &ids);
    }
  }
  return ids;
}

const BpeTokenizer::Token* BpeTokenizer::Find(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) return nullptr;
  return &tokens_[static_cast<size_t>(id)];
}

std::string BpeTokenizer::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (int32_t id : ids) {
    const Token* token = Find(id);
    if (token != nullptr && !(skip_special_tokens && token->special)) bytes += token->bytes;
  }
  return ReplaceInvalidUtf8(bytes);
}

std::string BpeTokenizer::TokenBytes(int32_t id) const {
  const Token* token = Find(id);
  return token == nullptr ? "" : token->bytes;
}

bool BpeTokenizer::IsSpecial(int32_t id) const {
  const Token* token = Find(id);
  return token != nullptr && token->special;
}

std::optional<int32_t> BpeTokenizer::TokenId(std::string_view name) const {
  if (auto it = ids_by_name_.find(absl::string_view(name.data(), name.size()));
      it != ids_by_name_.end())
    return it->second;
  if (FindInvalidUtf8(name) != std::string_view::npos) return std::nullopt;
  auto bytes = BytesOfSpelling(name);
  return bytes ? bpe_.Find(*bytes) : std::nullopt;
}

}  // namespace kt
