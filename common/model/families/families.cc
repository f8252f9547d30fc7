// SPDX-License-Identifier: Apache-2.0
#include "common/model/families/parts.h"
#include "common/model/family.h"

namespace kt {
namespace {

// Qwen3, GLM, DeepSeek and Kimi.
constexpr TensorNameTable kHubNames;

constexpr TensorNameTable kQwenNames = [] {
  TensorNameTable t;
  t.shared = "mlp.shared_expert.";
  return t;
}();

constexpr TensorNameTable kMixtralNames = [] {
  TensorNameTable t;
  t.router = "block_sparse_moe.gate.weight";
  t.correction_bias = "block_sparse_moe.e_score_correction_bias";
  t.expert = "block_sparse_moe.experts.{}.";
  t.expert_names[0] = "w1";
  t.expert_names[1] = "w3";
  t.expert_names[2] = "w2";
  return t;
}();

constexpr TensorNameTable kGptOssNames = [] {
  TensorNameTable t;
  t.router = "mlp.router.weight";
  t.router_bias = "mlp.router.bias";
  return t;
}();

constexpr std::string_view kQwenSkips[] = {"mtp.", "model.visual.", "visual."};
constexpr std::string_view kKimiSkips[] = {"vision_tower.", "mm_projector.",
                                           "multi_modal_projector."};

constexpr Family kFamilies[] = {
    {"deepseek_v3", "DeepseekV3ForCausalLM", &ReadDeepseekV3, &kHubNames},
    {"deepseek_v32", "DeepseekV32ForCausalLM", &ReadDeepseekV32, &kHubNames},
    {"glm4_moe", "Glm4MoeForCausalLM", &ReadGlm4Moe, &kHubNames},
    {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", &ReadGlm4MoeLite, &kHubNames},
    {"glm_moe_dsa", "GlmMoeDsaForCausalLM", &ReadGlmMoeDsa, &kHubNames},
    {"gpt_oss", "GptOssForCausalLM", &ReadGptOss, &kGptOssNames},
    {"kimi_k2", "DeepseekV3ForCausalLM", &ReadDeepseekV3, &kHubNames},
    {.model_type = "kimi_k25",
     .architecture = "KimiK25ForConditionalGeneration",
     .read = &ReadDeepseekV3,
     .names = &kHubNames,
     .wrapped = true,
     .prefix = "language_model.model.",
     .head_prefix = "language_model.",
     .skips = kKimiSkips},
    {"minimax_m2", "MiniMaxM2ForCausalLM", &ReadMiniMaxM2, &kMixtralNames},
    {"mixtral", "MixtralForCausalLM", &ReadMixtral, &kMixtralNames},
    {"qwen2_moe", "Qwen2MoeForCausalLM", &ReadQwen2Moe, &kQwenNames},
    {.model_type = "qwen3_5_moe",
     .architecture = "Qwen3_5MoeForConditionalGeneration",
     .read = &ReadQwen35Moe,
     .names = &kQwenNames,
     .wrapped = true,
     .prefix = "model.language_model.",
     .skips = kQwenSkips},
    {.model_type = "qwen3_5_moe_text",
     .architecture = "Qwen3_5MoeForCausalLM",
     .read = &ReadQwen35Moe,
     .names = &kQwenNames,
     .skips = kQwenSkips},
    {"qwen3_moe", "Qwen3MoeForCausalLM", &ReadQwen3Moe, &kHubNames},
    {.model_type = "qwen3_next",
     .architecture = "Qwen3NextForCausalLM",
     .read = &ReadQwen3Next,
     .names = &kQwenNames,
     .skips = kQwenSkips},
};

}  // namespace

std::span<const Family> Families() { return kFamilies; }

const Family* FindFamily(std::string_view model_type) {
  for (const Family& family : kFamilies) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

}  // namespace kt
