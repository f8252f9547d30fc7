// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>

#include "cli/doctor_checks.h"
#include "common/base/status.h"
#include "common/model/model_config.h"
#include "common/weights/checkpoint.h"
#include "node/available_memory.h"

namespace kt::cli {
namespace {

struct WeightBytes {
  int64_t experts = 0;  // routed ones, on the expert workers or the device
  int64_t dense = 0;
};

WeightBytes CountWeights(const ModelConfig& config, const Checkpoint& checkpoint) {
  WeightBytes bytes;
  const ModelTensors names = TensorNames(config);
  const auto size = [&](const std::string& name) {
    const TensorInfo* tensor = checkpoint.Find(name);
    return tensor == nullptr ? 0 : static_cast<int64_t>(tensor->data.size());
  };
  for (const LayerTensors& layer : names.layers) {
    for (const LayerTensors::Expert& expert : layer.experts)
      bytes.experts += size(expert.gate) + size(expert.up) + size(expert.down);
  }
  bytes.dense = checkpoint.bytes() - bytes.experts;
  return bytes;
}

// Keys and values of one token in all layers, bf16.
int64_t CacheBytesPerToken(const ModelConfig& config) {
  int64_t bytes = 0;
  for (const LayerConfig& layer : config.layers) {
    const AttentionConfig& attention = config.attentions[layer.attention];
    bytes += int64_t{2} * attention.num_kv_heads * attention.head_dim * 2;
  }
  return bytes;
}

void CheckFit(const DoctorOptions& options, const ModelConfig& config, const Checkpoint& checkpoint,
              Findings& findings) {
  const WeightBytes bytes = CountWeights(config, checkpoint);
  const double needed = static_cast<double>(bytes.experts + bytes.dense);
  const double available = static_cast<double>(AvailableMemoryBytes(options.root));
  const double cache = static_cast<double>(CacheBytesPerToken(config));
  Finding finding{
      .subject = "model memory",
      .value = fmt::format(
          "{} of weights ({} experts, {} dense) and {:.1f} KiB of cache a token; {} available",
          Size(needed), Size(static_cast<double>(bytes.experts)),
          Size(static_cast<double>(bytes.dense)), cache / 1024, Size(available))};
  if (needed > available) {
    finding.level = Level::kFail;
    finding.advice =
        fmt::format("{} more memory is needed for the weights alone", Size(needed - available));
  } else {
    findings.push_back({.subject = "cache that fits",
                        .value = fmt::format("about {:.0f} tokens beside the weights",
                                             (available - needed) / cache),
                        .detail = true});
  }
  findings.push_back(finding);
}

void CheckFiles(const std::string& dir, Findings& findings) {
  std::error_code error;
  const auto has = [&](const char* name) {
    return std::filesystem::exists(std::filesystem::path(dir) / name, error);
  };
  if (!has("tokenizer.json") && !has("tiktoken.model")) {
    findings.push_back(
        {Level::kFail, "tokenizer", "tokenizer.json is missing",
         "copy it, or Kimi's tiktoken.model, from the model's repository into " + dir});
  }
  if (!has("chat_template.jinja") && !has("tokenizer_config.json")) {
    findings.push_back({Level::kWarn, "chat template",
                        "neither chat_template.jinja nor tokenizer_config.json is there",
                        "copy them from the model's repository or pass --chat-template; only "
                        "/v1/completions works without"});
  }
}

}  // namespace

void CheckModel(const DoctorOptions& options, Findings& findings) {
  if (options.model_dir.empty()) return;
  const auto config = LoadModelConfig(options.model_dir);
  if (!config.ok()) {
    findings.push_back({Level::kFail, "model", Message(config.status())});
    return;
  }
  const int experts = config->moes.empty() ? 0 : config->moes[0].num_experts;
  findings.push_back({Level::kOk, "model",
                      fmt::format("{}, {} layers, {} experts a layer", config->model_type,
                                  config->layers.size(), experts)});
  CheckFiles(options.model_dir, findings);
  const auto checkpoint = Checkpoint::Open(options.model_dir);
  const absl::Status manifest =
      checkpoint.ok() ? CheckManifest(*config, **checkpoint) : checkpoint.status();
  if (!manifest.ok()) {
    findings.push_back({Level::kFail, "weights", Message(manifest)});
    return;
  }
  findings.push_back(
      {Level::kOk, "weights",
       fmt::format("{} tensors, all as the model expects", (*checkpoint)->tensors().size())});
  CheckFit(options, *config, **checkpoint, findings);
}

}  // namespace kt::cli
