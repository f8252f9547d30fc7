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
  reader.Only({"architectures"}, family->architecture);
  return family;
}

// "layers 1 to 3", for messages.
std::string MoeLayers(const ModelConfig& config) {
  int first = -1, last = -1;
  for (size_t l = 0; l < config.layers.size(); ++l) {
    if (!config.layers[l].moe.has_value()) continue;
    if (first < 0) first = static_cast<int>(l);
    last = static_cast<int>(l);
  }
  return first < 0 ? "no layer" : fmt::format("layers {} to {}", first, last);
}

void RefuseQuantization(ConfigReader& reader, const ModelConfig& config) {
  for (std::string_view field : {"quantization_config", "compression_config"}) {
    if (!reader.Has(field)) continue;
    std::string method = fmt::format("{}.quant_method", field);
    std::string format = fmt::format("{}.format", field);
    reader.Refuse(
        "{} (quant_method {}, format {}) for the experts of {}: no engine serves this scheme; "
        "supported: BF16 "
        "weights without {}, so use the BF16 release of the model",
        field, reader.Excerpt(method), reader.Excerpt(format), MoeLayers(config), field);
  }
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
  ConfigReader reader(config_json, std::string(kConfig));
  const Family* family = ReadFamily(reader);
  if (family == nullptr) return reader.status();
  ModelConfig config;
  config.model_type = family->model_type;
  config.architecture = family->architecture;
  family->read(reader, config);
  RefuseQuantization(reader, config);
  ReadTokenIds(reader, config);
  KT_RETURN_IF_ERROR(reader.status());

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
