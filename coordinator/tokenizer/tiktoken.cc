// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/tiktoken.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/base/status.h"
#include "coordinator/tokenizer/bpe_tokenizer.h"

namespace kt {
namespace {

constexpr int64_t kFileBytesMax = int64_t{64} << 20;
constexpr size_t kTokenBytesMax = 1024;
constexpr size_t kExcerptBytes = 80;
// Ids behind the vocabulary, named by the config or "<|reserved_token_ID|>".
constexpr int32_t kKimiReservedTokens = 256;
constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

using Rank = std::pair<std::string, int32_t>;

absl::StatusOr<Rank> ParseLine(std::string_view line) {
  size_t space = line.find(' ');
  Rank rank;
  const char* end = line.data() + line.size();
  if (space == std::string_view::npos ||
      !absl::Base64Unescape(absl::string_view(line.data(), space), &rank.first) ||
      rank.first.empty() || rank.first.size() > kTokenBytesMax) {
    return InvalidArgument(
        "expected a token of 1 to {} bytes in base64, a space and a rank, got {:?}", kTokenBytesMax,
        line.substr(0, kExcerptBytes));
  }
  auto [rest, error] = std::from_chars(line.data() + space + 1, end, rank.second);
  if (error != std::errc() || rest != end)
    return InvalidArgument("expected a rank behind the space, got {:?}",
                           line.substr(0, kExcerptBytes));
  return rank;
}

absl::StatusOr<std::vector<Rank>> ParseRanks(std::string_view text) {
  std::vector<Rank> ranks;
  for (size_t number = 1, begin = 0; begin < text.size(); ++number) {
    size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    auto rank = ParseLine(line);
    if (!rank.ok()) return Annotate(rank.status(), fmt::format("line {}", number));
    ranks.push_back(*std::move(rank));
  }
  return ranks;
}

// tiktoken merges two tokens when their joined bytes are a token, whose rank is the pair's.
void AddMerges(const std::vector<Rank>& ranks, Bpe* bpe) {
  for (const auto& [token, id] : ranks) {
    std::string_view bytes = token;
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      auto left = bpe->Find(bytes.substr(0, cut));
      if (!left) continue;
      if (auto right = bpe->Find(bytes.substr(cut))) bpe->AddMerge(*left, *right, id, id);
    }
  }
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return NotFound("{}: cannot be opened", path);
  const auto size = static_cast<int64_t>(file.tellg());
  if (size < 0 || size > kFileBytesMax)
    return InvalidArgument("{}: has {} bytes, more than the {} allowed", path, size, kFileBytesMax);
  std::string text(static_cast<size_t>(size), '\0');
  if (!file.seekg(0).read(text.data(), size)) return InvalidArgument("{}: cannot be read", path);
  return text;
}

using NamedTokens = std::map<int32_t, AddedToken>;  // by id

absl::StatusOr<NamedTokens> ReadNamedTokens(const Json& config) {
  NamedTokens named;
  auto decoder = config.find("added_tokens_decoder");
  if (decoder == config.end() || decoder->is_null()) return named;
  if (!decoder->is_object())
    return InvalidArgument("tokenizer_config.json: added_tokens_decoder must be an object, got {}",
                           JsonExcerpt(*decoder));
  for (const auto& [key, value] : decoder->items()) {
    std::string where = fmt::format("tokenizer_config.json: added_tokens_decoder[{:?}]", key);
    KT_ASSIGN_OR_RETURN(AddedToken token, AddedToken::FromJson(value, where));
    auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token.id);
    if (error != std::errc() || end != key.data() + key.size())
      return InvalidArgument("{}: the key must be a token id", where);
    named[token.id] = std::move(token);
  }
  return named;
}

// A vocabulary that was cut at the end of a line shows here: its ids end too early for the names.
absl::StatusOr<std::vector<AddedToken>> KimiAddedTokens(NamedTokens named, int32_t base) {
  std::vector<AddedToken> added;
  for (int32_t id = base; id < base + kKimiReservedTokens; ++id) {
    auto it = named.find(id);
    if (it == named.end()) {
      added.push_back({.id = id, .content = fmt::format("<|reserved_token_{}|>", id)});
    } else {
      added.push_back(std::move(it->second));
      named.erase(it);
    }
  }
  if (named.empty()) return added;
  const AddedToken& token = named.begin()->second;
  return InvalidArgument(
      "tokenizer_config.json: added_tokens_decoder names token {} ({:?}), but the vocabulary has "
      "{} tokens, which leaves the ids {} to {} to be named; is the vocabulary cut off or another "
      "model's?",
      token.id, token.content, base, base, base + kKimiReservedTokens - 1);
}

template <typename Parse>
absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path, const Parse& parse) {
  KT_ASSIGN_OR_RETURN(std::string text, ReadText(path));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = parse(text);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), path);
  return tokenizer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTiktoken(std::string_view text,
                                                         std::string_view pattern,
                                                         const AddedTokensOf& added_tokens) {
  KT_ASSIGN_OR_RETURN(std::vector<Rank> ranks, ParseRanks(text));
  KT_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
  auto tokenizer =
      std::make_unique<BpeTokenizer>(Normalizer(), PreTokenizer::FromRegex(std::move(regex)));
  for (const auto& [bytes, id] : ranks) KT_RETURN_IF_ERROR(tokenizer->AddByteToken(bytes, id));
  for (int byte = 0; byte < 256; ++byte) {
    if (!tokenizer->bpe().Find(std::string(1, static_cast<char>(byte))))
      return InvalidArgument("byte {} has no token", byte);
  }
  tokenizer->bpe().set_options({.ignore_merges = true});
  AddMerges(ranks, &tokenizer->bpe());
  KT_ASSIGN_OR_RETURN(std::vector<AddedToken> added,
                      added_tokens(static_cast<int32_t>(ranks.size())));
  KT_RETURN_IF_ERROR(tokenizer->AddAddedTokens(std::move(added)));
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseKimiTiktoken(std::string_view text,
                                                             const Json& config) {
  KT_ASSIGN_OR_RETURN(auto tokenizer_class,
                      JsonString(config, "tokenizer_class", "tokenizer_config.json"));
  if (tokenizer_class != "TikTokenTokenizer") {
    return InvalidArgument(
        "tokenizer_class {:?} in tokenizer_config.json is not supported with a tiktoken "
        "vocabulary; supported is TikTokenTokenizer (Kimi), other models need a tokenizer.json",
        tokenizer_class.value_or("null"));
  }
  KT_ASSIGN_OR_RETURN(NamedTokens named, ReadNamedTokens(config));
  return ParseTiktoken(text, kKimiPattern,
                       [&](int32_t base) { return KimiAddedTokens(std::move(named), base); });
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTiktoken(const std::string& path,
                                                        std::string_view pattern,
                                                        const AddedTokensOf& added_tokens) {
  return Load(path,
              [&](std::string_view text) { return ParseTiktoken(text, pattern, added_tokens); });
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadKimiTiktoken(const std::string& path,
                                                            const Json& config) {
  return Load(path, [&](std::string_view text) { return ParseKimiTiktoken(text, config); });
}

}  // namespace kt
