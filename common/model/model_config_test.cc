// SPDX-License-Identifier: Apache-2.0
#include "common/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kModels = KT_SOURCE_DIR "/tests/data/models";

Json ConfigOf(const std::string& family) {
  return ReadJsonFile(fmt::format("{}/{}/config.json", kModels, family)).value();
}

// The message that the family's fixture gives with some fields replaced.
std::string Refusal(const std::string& family, const Json& changes,
                    const Json& generation = Json::object()) {
  Json config = ConfigOf(family);
  config.update(changes);
  auto parsed = ParseModelConfig(config, generation);
  return parsed.ok() ? "accepted" : Message(parsed.status());
}

ModelConfig Accepted(const std::string& family, const Json& changes) {
  Json config = ConfigOf(family);
  config.update(changes);
  auto parsed = ParseModelConfig(config, Json::object());
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value_or(ModelConfig());
}

TEST(ModelConfigTest, ReadsQwen3Moe) {
  ModelConfig c = LoadModelConfig(std::string(kModels) + "/qwen3_moe").value();
  EXPECT_EQ(c.architecture, "Qwen3MoeForCausalLM");
  EXPECT_EQ(c.hidden, 128);
  EXPECT_EQ(c.vocab, 512);
  EXPECT_FLOAT_EQ(c.rms_norm_eps, 1e-6f);
  EXPECT_FALSE(c.tie_word_embeddings);
  ASSERT_EQ(c.layers.size(), 4u);
  const AttentionConfig& a = c.attentions.at(0);
  EXPECT_EQ(a.num_heads, 8);
  EXPECT_EQ(a.num_kv_heads, 2);
  EXPECT_EQ(a.head_dim, 32);
  EXPECT_EQ(a.qk_norm, QkNorm::kPerHead);
  EXPECT_FALSE(a.qkv_bias);
  EXPECT_FLOAT_EQ(a.scale, 1 / std::sqrt(32.0f));
  const RopeConfig& rope = c.ropes.at(static_cast<size_t>(a.rope.value()));
  EXPECT_EQ(rope.rotary_dim, 32);
  EXPECT_EQ(rope.inv_freq.size(), 16u);
  EXPECT_FLOAT_EQ(rope.inv_freq[1], static_cast<float>(std::pow(1e6, -1.0 / 16)));
  const MoeConfig& m = c.moes.at(0);
  EXPECT_EQ(m.num_experts, 16);
  EXPECT_EQ(m.top_k, 4);
  EXPECT_EQ(m.intermediate, 32);
  EXPECT_EQ(m.width, 128);
  EXPECT_EQ(m.shared_intermediate, 0);
  EXPECT_EQ(m.score, RouterScore::kSoftmax);
  EXPECT_FALSE(m.correction_bias);
  EXPECT_TRUE(m.norm_topk_prob);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(490, 488));
  EXPECT_EQ(c.bos_token_id, 488);
}

TEST(ModelConfigTest, ReadsGlm4Moe) {
  ModelConfig c = LoadModelConfig(std::string(kModels) + "/glm4_moe").value();
  EXPECT_EQ(c.hidden, 112);
  const AttentionConfig& a = c.attentions.at(0);
  EXPECT_EQ(a.qk_norm, QkNorm::kPerHead);
  EXPECT_TRUE(a.qkv_bias);
  EXPECT_FALSE(a.o_bias);
  EXPECT_EQ(c.ropes.at(0).rotary_dim, 16);
  EXPECT_FALSE(c.layers[0].moe.has_value());
  EXPECT_EQ(c.layers[0].dense_intermediate, 256);
  EXPECT_EQ(c.layers[1].moe, 0);
  const MoeConfig& m = c.moes.at(0);
  EXPECT_EQ(m.score, RouterScore::kSigmoid);
  EXPECT_TRUE(m.correction_bias);
  EXPECT_EQ(m.shared_intermediate, 32);
  EXPECT_FLOAT_EQ(m.routed_scaling_factor, 2.5f);
  EXPECT_EQ(c.mtp_layers, 1);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(488, 490));
  EXPECT_FALSE(c.bos_token_id.has_value());
}

TEST(ModelConfigTest, NewSpellingsMeanTheSame) {
  Json config = ConfigOf("qwen3_moe");
  config["num_local_experts"] = config["num_experts"];
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  config["dtype"] = "bfloat16";
  for (const char* old : {"num_experts", "rope_theta", "rope_scaling", "torch_dtype"})
    config.erase(old);
  ModelConfig c = ParseModelConfig(config, Json::object()).value();
  EXPECT_EQ(c.moes.at(0).num_experts, 16);
  EXPECT_EQ(c.ropes.at(0).theta, 1e6);
}

TEST(ModelConfigTest, SpellingsThatDisagreeAreRefused) {
  EXPECT_THAT(Refusal("qwen3_moe", {{"num_local_experts", 8}}),
              HasSubstr("num_experts is 16 but num_local_experts is 8"));
}

TEST(ModelConfigTest, QwenDenseLayersFollowStepAndList) {
  ModelConfig c = Accepted("qwen3_moe", {{"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}});
  std::vector<bool> moe;
  for (const LayerConfig& layer : c.layers) moe.push_back(layer.moe.has_value());
  EXPECT_THAT(moe, ElementsAre(false, true, false, false));
  EXPECT_EQ(c.layers[0].dense_intermediate, 256);
}

TEST(ModelConfigTest, AbsentFieldsHaveTheFamilysDefaults) {
  Json config = ConfigOf("glm4_moe");
  for (const char* field : {"use_qk_norm", "partial_rotary_factor", "norm_topk_prob", "n_group",
                            "topk_group", "head_dim", "routed_scaling_factor", "rms_norm_eps"}) {
    config.erase(field);
  }
  config["hidden_size"] = 96;
  ModelConfig c = ParseModelConfig(config, Json::object()).value();
  EXPECT_EQ(c.attentions.at(0).qk_norm, QkNorm::kNone);
  EXPECT_EQ(c.attentions.at(0).head_dim, 16);
  EXPECT_EQ(c.ropes.at(0).rotary_dim, 8);
  EXPECT_TRUE(c.moes.at(0).norm_topk_prob);
  EXPECT_FLOAT_EQ(c.moes.at(0).routed_scaling_factor, 1);
  EXPECT_FLOAT_EQ(c.rms_norm_eps, 1e-5f);
}

TEST(ModelConfigTest, OneExpertIsValid) {
  EXPECT_EQ(Accepted("qwen3_moe", {{"num_experts", 1}, {"num_experts_per_tok", 1}})
                .moes.at(0)
                .num_experts,
            1);
}

TEST(ModelConfigTest, UnknownModelTypeListsTheKnown) {
  std::string message = Refusal("qwen3_moe", {{"model_type", "llama"}});
  EXPECT_THAT(message, HasSubstr("model_type \"llama\""));
  EXPECT_THAT(message, HasSubstr("glm4_moe, qwen3_moe"));
}

TEST(ModelConfigTest, UnknownQuantizationNamesSchemeAndLayers) {
  std::string message =
      Refusal("glm4_moe", {{"quantization_config", {{"quant_method", "fp3"}, {"format", "odd"}}}});
  EXPECT_THAT(message, HasSubstr("quantization_config (quant_method \"fp3\", format \"odd\")"));
  EXPECT_THAT(message, HasSubstr("layers 1 to 3"));
  EXPECT_THAT(message, HasSubstr("supported: BF16"));
}

struct BadField {
  const char* family;
  Json changes;
  const char* message;
};

TEST(ModelConfigTest, BadFieldsAreRefusedByNameAndValue) {
  const BadField cases[] = {
      {"qwen3_moe",
       {{"hidden_act", "gelu"}},
       "hidden_act \"gelu\" is not supported; supported: \"silu\""},
      {"qwen3_moe", {{"torch_dtype", "float16"}}, "torch_dtype \"float16\" is not supported"},
      {"qwen3_moe",
       {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}},
       "rope_scaling.rope_type \"yarn\""},
      {"qwen3_moe",
       {{"rope_scaling", {{"type", "linear"}, {"factor", 4}}}},
       "rope_scaling.type \"linear\""},
      {"qwen3_moe", {{"rope_scaling", {{"factor", 4}}}}, "rope_scaling.factor 4"},
      {"qwen3_moe",
       {{"rope_scaling", "yarn"}},
       "rope_scaling must be an object or null, got \"yarn\""},
      {"qwen3_moe", {{"attention_bias", true}}, "attention_bias true"},
      {"qwen3_moe",
       {{"use_sliding_window", true}, {"sliding_window", 4096}},
       "sliding_window 4096"},
      {"qwen3_moe",
       {{"layer_types", {"full_attention", "sliding_attention"}}},
       "layer_types \"sliding_attention\""},
      {"qwen3_moe", {{"architectures", {"Qwen3MoeForTokenClassification"}}}, "architectures"},
      {"qwen3_moe", {{"num_experts", 1000000000000000000}}, "num_experts must be between 1 and"},
      {"qwen3_moe", {{"num_experts", 0}}, "num_experts must be between 1 and"},
      {"qwen3_moe", {{"num_experts", "16"}}, "num_experts must be an integer, got string \"16\""},
      {"qwen3_moe",
       {{"num_experts_per_tok", 17}},
       "num_experts_per_tok 17 is more than num_experts 16"},
      {"qwen3_moe", {{"num_hidden_layers", -1}}, "num_hidden_layers must be between"},
      {"qwen3_moe", {{"num_hidden_layers", 1024}, {"num_experts", 8192}}, "8388608 experts in all"},
      {"qwen3_moe",
       {{"num_key_value_heads", 3}},
       "num_attention_heads 8 is not a multiple of num_key_value_heads 3"},
      {"qwen3_moe",
       {{"num_attention_heads", 1024}, {"head_dim", 4097}},
       "head_dim must be between"},
      {"qwen3_moe",
       {{"hidden_size", 65536}, {"head_dim", nullptr}},
       "hidden_size 65536 / num_attention_heads 8"},
      {"qwen3_moe",
       {{"head_dim", 31}},
       "head_dim 31 x partial_rotary_factor 1 gives 31 rotary dimensions"},
      {"qwen3_moe",
       {{"head_dim", nullptr}, {"hidden_size", 129}},
       "hidden_size 129 is not a multiple"},
      {"qwen3_moe", {{"rope_theta", -1}}, "rope_theta must be between"},
      {"qwen3_moe", {{"hidden_size", nullptr}}, "hidden_size is missing"},
      {"qwen3_moe", {{"vocab_size", 1.5}}, "vocab_size must be an integer"},
      {"qwen3_moe", {{"eos_token_id", 512}}, "eos_token_id must be between 0 and 511, got 512"},
      {"qwen3_moe", {{"mlp_only_layers", {4}}}, "mlp_only_layers must be between 0 and 3, got 4"},
      {"qwen3_moe", {{"decoder_sparse_step", 0}}, "decoder_sparse_step must be between 1"},
      {"glm4_moe", {{"n_group", 3}}, "n_group 3"},
      {"glm4_moe", {{"n_group", 4}, {"topk_group", 5}}, "topk_group 5"},
      {"glm4_moe", {{"n_group", 8}, {"topk_group", 1}}, "4 per token"},
      {"glm4_moe", {{"scoring_func", "softmax"}}, "scoring_func \"softmax\""},
      {"glm4_moe", {{"partial_rotary_factor", 0.1}}, "partial_rotary_factor"},
      {"glm4_moe",
       {{"n_shared_experts", 8192}, {"moe_intermediate_size", 1048576}},
       "n_shared_experts 8192"},
  };
  for (const BadField& bad : cases) {
    EXPECT_THAT(Refusal(bad.family, bad.changes), HasSubstr(bad.message)) << DumpJson(bad.changes);
  }
}

TEST(ModelConfigTest, NotAnObjectIsRefused) {
  EXPECT_THAT(Message(ParseModelConfig(Json::array({1}), Json::object()).status()),
              HasSubstr("must be a JSON object"));
  EXPECT_THAT(Refusal("qwen3_moe", Json::object(), Json("x")),
              HasSubstr("generation_config.json: must be a JSON object"));
}

TEST(ModelConfigTest, GenerationConfigFaultsNameTheFile) {
  EXPECT_THAT(Refusal("qwen3_moe", Json::object(), {{"eos_token_id", {490, "x"}}}),
              HasSubstr("generation_config.json: eos_token_id must be an integer"));
}

TEST(ModelConfigTest, MissingDirectoryIsNotFound) {
  auto config = LoadModelConfig("/nonexistent");
  EXPECT_TRUE(absl::IsNotFound(config.status())) << config.status();
}

TEST(GenerationDefaultsTest, ReadsWhatIsThere) {
  GenerationDefaults d = LoadGenerationDefaults(std::string(kModels) + "/qwen3_moe").value();
  EXPECT_EQ(d.temperature, 0.6);
  EXPECT_EQ(d.top_k, 20);
  EXPECT_EQ(d.top_p, 0.95);
  EXPECT_FALSE(d.min_p.has_value());
}

TEST(GenerationDefaultsTest, AbsentFileSetsNothingAndBadValuesAreNamed) {
  std::filesystem::path dir =
      std::filesystem::path(::testing::TempDir()) / "generation_defaults_test";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directory(dir);
  EXPECT_FALSE(LoadGenerationDefaults(dir).value().temperature.has_value());
  std::ofstream(dir / "generation_config.json") << R"({"top_p": 1.5})";
  EXPECT_THAT(Message(LoadGenerationDefaults(dir).status()),
              HasSubstr("top_p must be between 0 and 1, got 1.5"));
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace kt
