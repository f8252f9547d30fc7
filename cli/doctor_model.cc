// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>

#include "cli/doctor_checks.h"
#include "common/base/status.h"
#include "common/model/model_config.h"
#include "common/weights/weight_summary.h"
#include "node/available_memory.h"

namespace kt::cli {
namespace {

// What one token adds to the caches of all layers, bf16. A delta net's state does not grow.
int64_t CacheBytesPerToken(const ModelConfig& config) {
  int64_t values = 0;
  for (const LayerConfig& layer : config.layers) {
    const AttentionConfig& a = config.attentions[static_cast<size_t>(layer.attention)];
    switch (a.kind) {
      case AttentionKind::kGqa:
        values += int64_t{2} * a.num_kv_heads * a.head_dim;
        break;
      case AttentionKind::kMla:
        values += a.kv_lora_rank + a.rope_dim;
        if (a.indexer.has_value() && !layer.shares_selection) {
          values += config.indexers[static_cast<size_t>(*a.indexer)].head_dim;
        }
        break;
      case AttentionKind::kDeltaNet:
        break;
    }
  }
  return values * 2;
}

void CheckFit(const DoctorOptions& options, const ModelConfig& config, const WeightSummary& weights,
              Findings& findings) {
  const double needed = static_cast<double>(weights.bytes());
  const double experts = static_cast<double>(weights.expert_bytes());
  const double available = static_cast<double>(AvailableMemoryBytes(options.root)) +
                           static_cast<double>(FreeHugetlbBytes(options.root));
  const double cache = static_cast<double>(CacheBytesPerToken(config));
  Finding finding{
      .subject = "model memory",
      .value = fmt::format(
          "{} of weights ({} experts, {} dense) and {:.1f} KiB of cache a token; {} available",
          Size(needed), Size(experts), Size(needed - experts), cache / 1024, Size(available))};
  if (needed > available) {
    finding.level = Level::kFail;
    finding.advice =
        fmt::format("{} more memory is needed for the weights alone", Size(needed - available));
  } else if (cache > 0) {
    findings.push_back({.subject = "cache that fits",
                        .value = fmt::format("about {:.0f} tokens beside the weights",
                                             (available - needed) / cache),
                        .detail = true});
  }
  findings.push_back(finding);
}

// One line for every run of layers stored alike.
void ListPrecisions(const WeightSummary& weights, Findings& findings) {
  const auto words = [](const LayerSummary& l) {
    return fmt::format("attention {}, feed-forward {}, experts {}", l.attention.precision,
                       l.ffn.precision, l.experts.precision);
  };
  for (size_t first = 0; first < weights.layers.size();) {
    const std::string text = words(weights.layers[first]);
    size_t end = first;
    double bytes = 0;
    while (end < weights.layers.size() && words(weights.layers[end]) == text) {
      bytes += static_cast<double>(weights.layers[end++].bytes());
    }
    findings.push_back({.subject = end - first == 1
                                       ? fmt::format("layer {}", first)
                                       : fmt::format("layers {} to {}", first, end - 1),
                        .value = fmt::format("{}; {}", text, Size(bytes)),
                        .detail = true});
    first = end;
  }
}

// Checks the weights against config.json and says what they are.
void CheckWeights(const DoctorOptions& options, const ModelConfig& config, Findings& findings) {
  const auto checkpoint = Checkpoint::Open(options.model_dir);
  if (!checkpoint.ok()) {
    findings.push_back({Level::kFail, "weights", Message(checkpoint.status())});
    return;
  }
  const auto model = ResolveWeights(config, **checkpoint);
  if (!model.ok()) {
    findings.push_back({Level::kFail, "weights", Message(model.status())});
    return;
  }
  auto method = KtMethodOf(*model);
  findings.push_back(
      {Level::kOk, "weights",
       fmt::format("{} tensors, all as the model expects; kt-method {}",
                   (*checkpoint)->tensors().size(), method.ok() ? *method : "(no experts)")});
  if (method.ok()) method = ChooseKtMethod(options.kt_method, *method);
  if (!method.ok() && !options.kt_method.empty())
    findings.push_back({Level::kFail, "kt-method", Message(method.status())});
  const WeightSummary weights = Summarize(*model, config, method.value_or(""));
  ListPrecisions(weights, findings);
  CheckFit(options, config, weights, findings);
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
  CheckWeights(options, *config, findings);
}

}  // namespace kt::cli
