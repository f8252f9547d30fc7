// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "coordinator/tokenizer/utf8.h"

namespace kt {
namespace {

bool IsWordChar(char32_t c) {
  auto code = static_cast<UChar32>(c);
  return u_isUAlphabetic(code) ||
         (U_GET_GC_MASK(code) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         u_hasBinaryProperty(code, UCHAR_JOIN_CONTROL);
}

bool WordAdjoins(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && IsWordChar(PreviousUtf8(text, &begin))) return true;
  return end < text.size() && IsWordChar(NextUtf8(text, &end));
}

size_t SpacesBegin(std::string_view text, size_t end) {
  for (size_t pos = end; pos > 0;) {
    if (!IsUnicodeSpace(PreviousUtf8(text, &pos))) break;
    end = pos;
  }
  return end;
}

size_t SpacesEnd(std::string_view text, size_t begin) {
  for (size_t pos = begin; pos < text.size();) {
    if (!IsUnicodeSpace(NextUtf8(text, &pos))) break;
    begin = pos;
  }
  return begin;
}

}  // namespace

absl::StatusOr<AddedToken> AddedToken::FromJson(const Json& json, std::string_view where) {
  AddedToken token;
  KT_ASSIGN_OR_RETURN(auto content, JsonString(json, "content", where));
  if (!content) return InvalidArgument("{}: content is missing in {}", where, JsonExcerpt(json));
  token.content = *std::move(content);
  KT_ASSIGN_OR_RETURN(auto special, JsonBool(json, "special", where));
  token.special = special.value_or(false);
  KT_ASSIGN_OR_RETURN(auto normalized, JsonBool(json, "normalized", where));
  token.normalized = normalized.value_or(!token.special);
  for (auto [field, flag] : {std::pair("lstrip", &token.lstrip),
                             {"rstrip", &token.rstrip},
                             {"single_word", &token.single_word}}) {
    KT_ASSIGN_OR_RETURN(auto value, JsonBool(json, field, where));
    *flag = value.value_or(false);
  }
  return token;
}

void AddedTokenFinder::Add(std::string_view text, AddedToken token) {
  if (text.empty()) return;
  int32_t node = 0;
  for (char c : text) {
    auto byte = static_cast<uint8_t>(c);
    int32_t& next = node == 0 ? first_[byte] : edges_[static_cast<uint64_t>(node) << 8 | byte];
    if (next == 0) {
      next = static_cast<int32_t>(token_of_node_.size());
      token_of_node_.push_back(-1);
    }
    node = next;
  }
  token_of_node_[static_cast<size_t>(node)] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(std::move(token));
}

int32_t AddedTokenFinder::Longest(std::string_view text, size_t* length) const {
  int32_t found = -1;
  int32_t node = first_[static_cast<uint8_t>(text[0])];
  for (size_t i = 1; node != 0; ++i) {
    if (int32_t token = token_of_node_[static_cast<size_t>(node)]; token >= 0) {
      found = token;
      *length = i;
    }
    if (i == text.size()) break;
    auto it = edges_.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(text[i]));
    node = it == edges_.end() ? 0 : it->second;
  }
  return found;
}

std::vector<AddedTokenFinder::Section> AddedTokenFinder::Split(std::string_view text) const {
  std::vector<Section> sections;
  size_t done = 0;
  for (size_t pos = 0; pos < text.size();) {
    size_t length = 0;
    int32_t index = Longest(text.substr(pos), &length);
    if (index < 0) {
      ++pos;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = pos, end = pos + length;
    pos = end;
    if (token.single_word && WordAdjoins(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(SpacesBegin(text, begin), done);
    if (token.rstrip) end = SpacesEnd(text, end);
    if (done < begin) sections.push_back({text.substr(done, begin - done), nullptr});
    // Empty: a token of spaces whose place the one before, with rstrip, has taken.
    if (begin < end) sections.push_back({text.substr(begin, end - begin), &token});
    done = std::max(done, end);
  }
  if (done < text.size()) sections.push_back({text.substr(done), nullptr});
  return sections;
}

}  // namespace kt
