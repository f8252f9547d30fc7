// SPDX-License-Identifier: Apache-2.0
#include "common/model/model_config.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/model/config_reader.h"
#include "common/model/family.h"

namespace kt {
namespace {

constexpr JsonLimits kConfigLimits = {.bytes_max = size_t{1} << 20, .depth_max = 32};
constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kGenerationConfig = "generation_config.json";

// An absent generation_config.json is an empty one.
absl::StatusOr<Json> ReadGenerationConfig(const std::string& model_dir) {
  auto json = ReadJsonFile(fmt::format("{}/{}", model_dir, kGenerationConfig), kConfigLimits);
  if (absl::IsNotFound(json.status())) return Json::object();
  return json;
}

const Family* ReadFamily(ConfigReader& reader) {
  std::string model_type = reader.String({"model_type"});
  if (!reader.status().ok()) return nullptr;
  const Family* family = FindFamily(model_type);
  if (family == nullptr) {
    std::vector<std::string_view> known;
    for (const Family& f : Families()) known.push_back(f.model_type);
    reader.Refuse("model_type {} is not supported; supported: {}", reader.Excerpt("model_type"),
                  fmt::join(known, ", "));
    return nullptr;
  }
  reader.Only({"architectures"}, {family->architecture});
  return family;
}

// The fields of a wrapped model, with those that the wrapper gives in its place.
Json Unwrapped(ConfigReader& reader, const Json& config) {
  auto it = config.find("text_config");
  if (it == config.end() || !it->is_object()) {
    reader.Refuse("text_config must be an object, got {}", reader.Excerpt("text_config"));
    return Json::object();
  }
  Json text = *it;
  for (const char* field : {"tie_word_embeddings", "quantization_config", "compression_config"}) {
    auto outer = config.find(field);
    if (outer == config.end() || outer->is_null()) continue;
    Json& inner = text[field];
    if (!inner.is_null() && inner != *outer) {
      reader.Refuse("{} {} and text_config.{} {} differ; they mean the same, remove one", field,
                    JsonExcerpt(*outer), field, JsonExcerpt(inner));
    }
    inner = *outer;
  }
  return text;
}

absl::StatusOr<QuantizationConfig> ReadQuantization(const Json& fields) {
  for (const char* field : {"quantization_config", "compression_config"}) {
    auto it = fields.find(field);
    if (it != fields.end() && !it->is_null()) return ParseQuantizationConfig(*it);
  }
  return QuantizationConfig();
}

void ReadTokenIds(ConfigReader& reader, ModelConfig& config) {
  for (int id : reader.Ints({"eos_token_id"}, 0, config.vocab - 1)) {
    if (std::find(config.eos_token_ids.begin(), config.eos_token_ids.end(), id) ==
        config.eos_token_ids.end()) {
      config.eos_token_ids.push_back(id);
    }
  }
  if (reader.Has("bos_token_id")) {
    int id = reader.Int({"bos_token_id"}, 0, config.vocab - 1);
    if (!config.bos_token_id.has_value()) config.bos_token_id = id;
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const Json& config_json,
                                             const Json& generation_config) {
  ConfigReader outer(config_json, std::string(kConfig));
  const Family* family = ReadFamily(outer);
  if (family == nullptr) return outer.status();
  const Json text = family->wrapped ? Unwrapped(outer, config_json) : Json();
  KT_RETURN_IF_ERROR(outer.status());
  const Json& fields = family->wrapped ? text : config_json;
  ConfigReader reader(fields, fmt::format("{}{}", kConfig, family->wrapped ? ": text_config" : ""));
  ModelConfig config;
  config.model_type = family->model_type;
  config.architecture = family->architecture;
  family->read(reader, config);
  ReadTokenIds(reader, config);
  KT_RETURN_IF_ERROR(reader.status());
  if (family->wrapped) ReadTokenIds(outer, config);
  KT_RETURN_IF_ERROR(outer.status());
  KT_ASSIGN_OR_RETURN(config.quantization, ReadQuantization(fields));

  ConfigReader generation(generation_config, std::string(kGenerationConfig));
  ReadTokenIds(generation, config);
  KT_RETURN_IF_ERROR(generation.status());
  return config;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir) {
  KT_ASSIGN_OR_RETURN(Json config,
                      ReadJsonFile(fmt::format("{}/{}", model_dir, kConfig), kConfigLimits));
  KT_ASSIGN_OR_RETURN(Json generation_config, ReadGenerationConfig(model_dir));
  auto parsed = ParseModelConfig(config, generation_config);
  if (!parsed.ok()) return Annotate(parsed.status(), model_dir);
  return parsed;
}

bool HasState(const ModelConfig& config) {
  return std::any_of(
      config.attentions.begin(), config.attentions.end(),
      [](const AttentionConfig& a) { return a.kind == AttentionKind::kDeltaNet; });
}

absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const std::string& model_dir) {
  KT_ASSIGN_OR_RETURN(Json json, ReadGenerationConfig(model_dir));
  std::string where = fmt::format("{}/{}", model_dir, kGenerationConfig);
  if (!json.is_object()) return InvalidArgument("{}: must be a JSON object", where);
  GenerationDefaults defaults;
  KT_ASSIGN_OR_RETURN(defaults.temperature, JsonNumber(json, "temperature", where, 0, 100));
  KT_ASSIGN_OR_RETURN(defaults.top_p, JsonNumber(json, "top_p", where, 0, 1));
  KT_ASSIGN_OR_RETURN(defaults.min_p, JsonNumber(json, "min_p", where, 0, 1));
  KT_ASSIGN_OR_RETURN(defaults.repetition_penalty,
                      JsonNumber(json, "repetition_penalty", where, 1e-3, 1e3));
  KT_ASSIGN_OR_RETURN(std::optional<int64_t> top_k, JsonInt(json, "top_k", where, -1, 1 << 24));
  if (top_k.has_value()) defaults.top_k = static_cast<int>(*top_k);
  return defaults;
}

}  // namespace kt
