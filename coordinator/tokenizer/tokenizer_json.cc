// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/tokenizer_json.h"

#include <charconv>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "coordinator/tokenizer/bpe_tokenizer.h"

namespace kt {
namespace {

// Takes model.vocab and model.merges out of the JSON text while it is parsed: they have hundreds of
// thousands of entries.
class Reader {
 public:
  JsonFilter Filter() {
    return [this](int depth, Json::parse_event_t event, Json& value) {
      return Keep(depth, event, value);
    };
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> Build(const Json& json, const Json& config);

 private:
  bool Keep(int depth, Json::parse_event_t event, Json& value);
  void TakeMerge(const Json& merge);
  absl::StatusOr<Bpe::Options> ModelOptions(const Json& model, const BpeTokenizer& tokenizer) const;
  absl::Status AddMerges(BpeTokenizer* tokenizer) const;
  absl::Status OverlayConfig(const Json& config, const BpeTokenizer& tokenizer,
                             std::vector<AddedToken>* added) const;

  std::string keys_[4];  // by depth
  std::vector<std::pair<std::string, int32_t>> vocab_;
  std::vector<std::pair<std::string, std::string>> merges_;
  absl::Status status_;  // of the first entry that is not as it must be
};

bool Reader::Keep(int depth, Json::parse_event_t event, Json& value) {
  using Event = Json::parse_event_t;
  if (event == Event::key && depth <= 3) keys_[depth] = value.get<std::string>();
  if (depth != 3 || keys_[1] != "model") return true;
  if (keys_[2] == "vocab") {
    if (event == Event::value) {
      if (value.is_number_unsigned() && value.get<uint64_t>() <= BpeTokenizer::kIdMax) {
        vocab_.emplace_back(std::move(keys_[3]), value.get<int32_t>());
      } else if (status_.ok()) {
        status_ = InvalidArgument("model.vocab: the id of {:?} must be between 0 and {}, got {}",
                                  keys_[3], BpeTokenizer::kIdMax, JsonExcerpt(value));
      }
    }
    return event != Event::key && event != Event::value;
  }
  if (keys_[2] == "merges" && (event == Event::value || event == Event::array_end)) {
    TakeMerge(value);
    return false;
  }
  return true;
}

void Reader::TakeMerge(const Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    merges_.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    return;
  }
  if (merge.is_string()) {
    std::string text = merge.get<std::string>();
    if (text.rfind("#version", 0) == 0) return;
    size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      merges_.emplace_back(text.substr(0, space), text.substr(space + 1));
      return;
    }
  }
  if (status_.ok())
    status_ = InvalidArgument("model.merges[{}] must be \"a b\" or [\"a\", \"b\"], got {}",
                              merges_.size(), JsonExcerpt(merge));
}

absl::StatusOr<Bpe::Options> Reader::ModelOptions(const Json& model,
                                                  const BpeTokenizer& tokenizer) const {
  for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    KT_ASSIGN_OR_RETURN(auto affix, JsonString(model, field, "model"));
    if (affix && !affix->empty())
      return InvalidArgument("model: {} {:?} is not supported; it must be null or empty", field,
                             *affix);
  }
  KT_ASSIGN_OR_RETURN(auto byte_fallback, JsonBool(model, "byte_fallback", "model"));
  if (byte_fallback.value_or(false)) {
    return InvalidArgument(
        "model: byte_fallback true is not supported; it must be false, as in byte-level "
        "vocabularies");
  }
  KT_ASSIGN_OR_RETURN(auto dropout, JsonNumber(model, "dropout", "model"));
  if (dropout.value_or(0) != 0)
    return InvalidArgument("model: dropout {} is not supported; it must be null or 0", *dropout);
  Bpe::Options options;
  KT_ASSIGN_OR_RETURN(auto ignore_merges, JsonBool(model, "ignore_merges", "model"));
  options.ignore_merges = ignore_merges.value_or(false);
  KT_ASSIGN_OR_RETURN(auto fuse_unk, JsonBool(model, "fuse_unk", "model"));
  options.fuse_unk = fuse_unk.value_or(false);
  KT_ASSIGN_OR_RETURN(auto unk_token, JsonString(model, "unk_token", "model"));
  if (unk_token) {
    options.unk_token = tokenizer.TokenId(*unk_token);
    if (!options.unk_token)
      return InvalidArgument("model: unk_token {:?} is not in the vocabulary", *unk_token);
  }
  return options;
}

absl::Status Reader::AddMerges(BpeTokenizer* tokenizer) const {
  for (size_t i = 0; i < merges_.size(); ++i) {
    const auto& [left, right] = merges_[i];
    auto left_id = tokenizer->TokenId(left), right_id = tokenizer->TokenId(right),
         id = tokenizer->TokenId(left + right);
    if (!left_id || !right_id || !id) {
      const std::string& missing = !left_id ? left : !right_id ? right : left + right;
      return InvalidArgument("model.merges[{}]: {:?} is not in model.vocab", i, missing);
    }
    tokenizer->bpe().AddMerge(*left_id, *right_id, static_cast<int32_t>(i), *id);
  }
  return absl::OkStatus();
}

// transformers knows tokens by their content: the ids of the config count only for tokens that
// tokenizer.json does not have.
absl::Status Reader::OverlayConfig(const Json& config, const BpeTokenizer& tokenizer,
                                   std::vector<AddedToken>* added) const {
  if (!config.is_object()) return absl::OkStatus();
  const Json decoder = config.value("added_tokens_decoder", Json());
  if (decoder.is_null()) return absl::OkStatus();
  if (!decoder.is_object())
    return InvalidArgument("added_tokens_decoder must be an object, got {}", JsonExcerpt(decoder));
  absl::flat_hash_map<std::string, size_t> index_by_content;
  for (size_t i = 0; i < added->size(); ++i) index_by_content[(*added)[i].content] = i;
  for (const auto& [key, value] : decoder.items()) {
    std::string where = fmt::format("added_tokens_decoder[{:?}]", key);
    KT_ASSIGN_OR_RETURN(AddedToken token, AddedToken::FromJson(value, where));
    auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token.id);
    if (error != std::errc() || end != key.data() + key.size())
      return InvalidArgument("{}: the key must be a token id", where);
    if (auto it = index_by_content.find(token.content); it != index_by_content.end()) {
      token.id = (*added)[it->second].id;
      (*added)[it->second] = token;
      continue;
    }
    if (auto id = tokenizer.TokenId(token.content)) token.id = *id;
    index_by_content[token.content] = added->size();
    added->push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Reader::Build(const Json& json, const Json& config) {
  if (!status_.ok()) return status_;
  auto field = [&](const char* name) {
    return json.is_object() ? json.value(name, Json()) : Json();
  };
  const Json model = field("model");
  KT_ASSIGN_OR_RETURN(auto type, JsonString(model, "type", "model"));
  if (type.value_or("BPE") != "BPE")
    return InvalidArgument("model: type {:?} is not supported; supported is BPE over bytes", *type);
  if (vocab_.empty())
    return InvalidArgument(
        "model.vocab is missing or has no tokens; a tokenizer.json with a BPE model is needed");
  KT_ASSIGN_OR_RETURN(auto decoder, JsonString(field("decoder"), "type", "decoder"));
  if (decoder != "ByteLevel") {
    return InvalidArgument("decoder: type {:?} is not supported; supported is ByteLevel",
                           decoder.value_or("null"));
  }
  KT_ASSIGN_OR_RETURN(Normalizer normalizer,
                      Normalizer::FromJson(field("normalizer"), "normalizer"));
  KT_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer,
                      PreTokenizer::FromJson(field("pre_tokenizer"), "pre_tokenizer"));
  auto tokenizer = std::make_unique<BpeTokenizer>(std::move(normalizer), std::move(pre_tokenizer));
  for (const auto& [spelling, id] : vocab_)
    KT_RETURN_IF_ERROR(tokenizer->AddSpelledToken(spelling, id));
  KT_ASSIGN_OR_RETURN(Bpe::Options options, ModelOptions(model, *tokenizer));
  tokenizer->bpe().set_options(options);
  KT_RETURN_IF_ERROR(AddMerges(tokenizer.get()));

  std::vector<AddedToken> added;
  const Json added_json = field("added_tokens");
  for (size_t i = 0; added_json.is_array() && i < added_json.size(); ++i) {
    std::string where = fmt::format("added_tokens[{}]", i);
    KT_ASSIGN_OR_RETURN(AddedToken token, AddedToken::FromJson(added_json[i], where));
    KT_ASSIGN_OR_RETURN(auto id, JsonInt(added_json[i], "id", where, 0, BpeTokenizer::kIdMax));
    if (!id) return InvalidArgument("{}: id is missing", where);
    token.id = static_cast<int32_t>(*id);
    added.push_back(std::move(token));
  }
  KT_RETURN_IF_ERROR(OverlayConfig(config, *tokenizer, &added));
  KT_RETURN_IF_ERROR(tokenizer->AddAddedTokens(std::move(added)));
  return tokenizer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTokenizerJson(std::string_view text,
                                                              const Json& config) {
  Reader reader;
  KT_ASSIGN_OR_RETURN(Json json, ParseJson(text, {}, reader.Filter()));
  return reader.Build(json, config);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(const std::string& path,
                                                             const Json& config) {
  Reader reader;
  KT_ASSIGN_OR_RETURN(Json json, ReadJsonFile(path, {}, reader.Filter()));
  auto tokenizer = reader.Build(json, config);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), path);
  return tokenizer;
}

}  // namespace kt
