// SPDX-License-Identifier: Apache-2.0
#include "coordinator/template/chat_template.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/base/json.h"
#include "common/base/status.h"

namespace kt {
namespace {

constexpr std::streamsize kTemplateBytesMax = std::streamsize{4} << 20;

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

absl::StatusOr<std::string> ReadTemplate(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(kTemplateBytesMax) + 1, '\0');
  file.read(text.data(), kTemplateBytesMax + 1);
  if (!file.is_open() || file.bad() ||
      (file.gcount() == 0 && std::filesystem::is_directory(path))) {
    return NotFound("chat template {}: cannot be read", path);
  }
  if (file.gcount() > kTemplateBytesMax)
    return InvalidArgument("chat template {}: has more than {} bytes", path, kTemplateBytesMax);
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

// {} where the model has no tokenizer_config.json.
absl::StatusOr<Json> ReadConfig(const std::string& model_dir) {
  std::string path = model_dir + "/tokenizer_config.json";
  if (!Exists(path)) return Json::object();
  KT_ASSIGN_OR_RETURN(Json config, ReadJsonFile(path));
  if (!config.is_object())
    return InvalidArgument("{}: must be an object, got {}", path, JsonExcerpt(config));
  return config;
}

// A token is given as text or as {"content": text, ...}.
absl::StatusOr<std::string> TokenText(const Json& config, const char* field) {
  const Json token = config.value(field, Json());
  if (token.is_object()) {
    KT_ASSIGN_OR_RETURN(auto content, JsonString(token, "content",
                                                 fmt::format("tokenizer_config.json: {}", field)));
    return content.value_or("");
  }
  KT_ASSIGN_OR_RETURN(auto text, JsonString(config, field, "tokenizer_config.json"));
  return text.value_or("");
}

}  // namespace

absl::StatusOr<std::string> LoadChatTemplate(const std::string& model_dir,
                                             const std::string& override_path) {
  if (!override_path.empty()) return ReadTemplate(override_path);
  if (std::string path = model_dir + "/chat_template.jinja"; Exists(path))
    return ReadTemplate(path);
  KT_ASSIGN_OR_RETURN(Json config, ReadConfig(model_dir));
  const Json chat_template = config.value("chat_template", Json());
  if (chat_template.is_string()) return chat_template.get<std::string>();
  if (chat_template.is_array()) {
    for (const Json& named : chat_template) {
      KT_ASSIGN_OR_RETURN(auto name,
                          JsonString(named, "name", "tokenizer_config.json: chat_template"));
      KT_ASSIGN_OR_RETURN(auto text,
                          JsonString(named, "template", "tokenizer_config.json: chat_template"));
      if (name == "default" && text) return *text;
    }
  } else if (!chat_template.is_null()) {
    return InvalidArgument(
        "{}/tokenizer_config.json: chat_template must be text or a list of named ones, got {}",
        model_dir, JsonExcerpt(chat_template));
  }
  return FailedPrecondition(
      "{}: the model has no chat template (chat_template.jinja, or chat_template in "
      "tokenizer_config.json); give one with --chat-template FILE",
      model_dir);
}

absl::StatusOr<SpecialTokens> LoadSpecialTokens(const std::string& model_dir) {
  KT_ASSIGN_OR_RETURN(Json config, ReadConfig(model_dir));
  SpecialTokens tokens;
  KT_ASSIGN_OR_RETURN(tokens.bos_token, TokenText(config, "bos_token"));
  KT_ASSIGN_OR_RETURN(tokens.eos_token, TokenText(config, "eos_token"));
  return tokens;
}

}  // namespace kt
