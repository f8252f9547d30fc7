// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/tiktoken.h"

#include <charconv>
#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/base/status.h"
#include "coordinator/tokenizer/bpe_tokenizer.h"

namespace kt {
namespace {

constexpr size_t kTokenBytesMax = 1024;
constexpr int32_t kKimiReservedTokens =
    256;  // ids behind the vocabulary, named by the config or "<|reserved_token_ID|>"
constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

using Rank = std::pair<std::string, int32_t>;

absl::StatusOr<Rank> ParseLine(const std::string& line) {
  size_t space = line.find(' ');
  Rank rank;
  const char* end = line.data() + line.size();
  if (space == std::string::npos ||
      !absl::Base64Unescape(absl::string_view(line.data(), space), &rank.first) ||
      rank.first.empty() || rank.first.size() > kTokenBytesMax) {
    return InvalidArgument("expected a token in base64, a space and a rank, got {:?}",
                           line.substr(0, 80));
  }
  auto [rest, error] = std::from_chars(line.data() + space + 1, end, rank.second);
  if (error != std::errc() || rest != end)
    return InvalidArgument("expected a rank behind the space, got {:?}", line.substr(0, 80));
  return rank;
}

absl::StatusOr<std::vector<Rank>> ReadRanks(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound("{}: cannot be opened", path);
  std::vector<Rank> ranks;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    auto rank = ParseLine(line);
    if (!rank.ok()) return Annotate(rank.status(), fmt::format("{}: line {}", path, number));
    if (ranks.size() > static_cast<size_t>(BpeTokenizer::kIdMax))
      return InvalidArgument("{}: has more than {} tokens", path, ranks.size());
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

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTiktoken(
    const std::string& path, std::string_view pattern,
    const std::function<std::vector<AddedToken>(int32_t)>& added_tokens) {
  KT_ASSIGN_OR_RETURN(std::vector<Rank> ranks, ReadRanks(path));
  KT_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
  auto tokenizer =
      std::make_unique<BpeTokenizer>(Normalizer(), PreTokenizer::FromRegex(std::move(regex)));
  for (const auto& [bytes, id] : ranks) {
    if (absl::Status status = tokenizer->AddByteToken(bytes, id); !status.ok())
      return Annotate(status, path);
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (!tokenizer->bpe().Find(std::string(1, static_cast<char>(byte))))
      return InvalidArgument("{}: byte {} has no token", path, byte);
  }
  tokenizer->bpe().set_options({.ignore_merges = true});
  AddMerges(ranks, &tokenizer->bpe());
  if (absl::Status status =
          tokenizer->AddAddedTokens(added_tokens(static_cast<int32_t>(ranks.size())));
      !status.ok()) {
    return Annotate(status, path);
  }
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadKimiTiktoken(const std::string& path,
                                                            const Json& config) {
  KT_ASSIGN_OR_RETURN(auto tokenizer_class,
                      JsonString(config, "tokenizer_class", "tokenizer_config.json"));
  if (tokenizer_class != "TikTokenTokenizer") {
    return InvalidArgument(
        "{}: tokenizer_class {:?} in tokenizer_config.json is not supported with a tiktoken "
        "vocabulary; supported is TikTokenTokenizer "
        "(Kimi), other models need a tokenizer.json",
        path, tokenizer_class.value_or("null"));
  }
  absl::flat_hash_map<int32_t, AddedToken> named;
  const Json decoder = config.value("added_tokens_decoder", Json::object());
  if (!decoder.is_object())
    return InvalidArgument("tokenizer_config.json: added_tokens_decoder must be an object, got {}",
                           JsonExcerpt(decoder));
  for (const auto& [key, value] : decoder.items()) {
    std::string where = fmt::format("tokenizer_config.json: added_tokens_decoder[{:?}]", key);
    KT_ASSIGN_OR_RETURN(AddedToken token, AddedToken::FromJson(value, where));
    auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token.id);
    if (error != std::errc() || end != key.data() + key.size())
      return InvalidArgument("{}: the key must be a token id", where);
    named[token.id] = std::move(token);
  }
  return LoadTiktoken(path, kKimiPattern, [&](int32_t base) {
    std::vector<AddedToken> added;
    for (int32_t id = base; id < base + kKimiReservedTokens; ++id) {
      auto it = named.find(id);
      added.push_back(
          it != named.end()
              ? it->second
              : AddedToken{.id = id, .content = fmt::format("<|reserved_token_{}|>", id)});
    }
    return added;
  });
}

}  // namespace kt
