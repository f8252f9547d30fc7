// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/tokenizer.h"

#include <filesystem>

#include "common/base/status.h"
#include "coordinator/tokenizer/tiktoken.h"
#include "coordinator/tokenizer/tokenizer_json.h"
#include "coordinator/tokenizer/utf8.h"

namespace kt {

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return LoadTokenizerJson(path, Json());
  Json config;
  if (std::string config_path = path + "/tokenizer_config.json";
      std::filesystem::exists(config_path, error)) {
    KT_ASSIGN_OR_RETURN(config, ReadJsonFile(config_path));
  }
  if (std::string json = path + "/tokenizer.json"; std::filesystem::exists(json, error))
    return LoadTokenizerJson(json, config);
  if (std::string ranks = path + "/tiktoken.model"; std::filesystem::exists(ranks, error))
    return LoadKimiTiktoken(ranks, config);
  return NotFound("{}: has no tokenizer.json and no tiktoken.model", path);
}

std::string StreamDecoder::Push(int32_t id) {
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return "";
  pending_ += tokenizer_->TokenBytes(id);
  size_t complete = pending_.size() - IncompleteUtf8Tail(pending_);
  std::string text = ReplaceInvalidUtf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

std::string StreamDecoder::Flush() {
  std::string text = ReplaceInvalidUtf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace kt
