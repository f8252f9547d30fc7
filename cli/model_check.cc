// SPDX-License-Identifier: Apache-2.0
#include "cli/model_check.h"

#include <filesystem>

#include "common/base/status.h"
#include "common/weights/weight_summary.h"

namespace kt::cli {
namespace {

namespace fs = std::filesystem;

// The CPU experts of one directory take the rows that the layers of another one send them.
absl::Status CheckSameExperts(const ModelConfig& model, const std::string& weight_path,
                              const ModelConfig& weights) {
  auto differ = [&](std::string_view what, auto expected, auto found) {
    return InvalidArgument(
        "--kt-weight-path {}: its experts do not fit the model: {} is {}, the model's is {}",
        weight_path, what, found, expected);
  };
  if (model.layers.size() != weights.layers.size())
    return differ("num_hidden_layers", model.layers.size(), weights.layers.size());
  for (size_t l = 0; l < model.layers.size(); ++l) {
    if (model.layers[l].moe.has_value() != weights.layers[l].moe.has_value()) {
      return differ(fmt::format("layer {}", l), model.layers[l].moe ? "MoE" : "dense",
                    weights.layers[l].moe ? "MoE" : "dense");
    }
    if (!model.layers[l].moe) continue;
    const MoeConfig& a = model.moes[static_cast<size_t>(*model.layers[l].moe)];
    const MoeConfig& b = weights.moes[static_cast<size_t>(*weights.layers[l].moe)];
    if (a.num_experts != b.num_experts)
      return differ("the number of experts", a.num_experts, b.num_experts);
    if (a.top_k != b.top_k) return differ("num_experts_per_tok", a.top_k, b.top_k);
    if (a.width != b.width) return differ("hidden_size", a.width, b.width);
    if (a.intermediate != b.intermediate)
      return differ("moe_intermediate_size", a.intermediate, b.intermediate);
    if (a.activation != b.activation || a.activation_alpha != b.activation_alpha ||
        a.activation_limit != b.activation_limit)
      return differ("swiglu_limit", a.activation_limit, b.activation_limit);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> MethodOf(const std::string& dir, const ModelConfig& config,
                                     StoredParts parts) {
  KT_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(dir));
  KT_ASSIGN_OR_RETURN(StoredModel stored, ResolveWeights(config, *checkpoint, parts));
  return KtMethodOf(stored);
}

}  // namespace

absl::StatusOr<ModelConfig> CheckModelDir(const std::string& dir) {
  std::error_code error;
  if (!fs::exists(dir, error)) {
    return NotFound(
        "model {}: there is no such directory; give the path of a Hugging Face model directory or "
        "a name of `kt model list`",
        dir);
  }
  if (!fs::is_directory(dir, error)) return InvalidArgument("model {}: is not a directory", dir);
  return LoadModelConfig(dir);
}

absl::StatusOr<std::string> CheckWeights(const std::string& dir, const ModelConfig& model,
                                         const std::string& weight_path) {
  KT_ASSIGN_OR_RETURN(std::string method, MethodOf(dir, model, StoredParts::kAll));
  std::error_code error;
  if (!weight_path.empty() && !fs::equivalent(dir, weight_path, error)) {
    auto weights = CheckModelDir(weight_path);
    if (!weights.ok()) return Annotate(weights.status(), "--kt-weight-path");
    KT_RETURN_IF_ERROR(CheckSameExperts(model, weight_path, *weights));
    KT_ASSIGN_OR_RETURN(method, MethodOf(weight_path, *weights, StoredParts::kExperts));
  }
  return method;
}

}  // namespace kt::cli
