// SPDX-License-Identifier: Apache-2.0
#include "common/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "common/base/status.h"
#include "common/model/family.h"

namespace kt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kModels = KT_SOURCE_DIR "/tests/data/models";
constexpr const char* kConfigs = KT_SOURCE_DIR "/common/model/fuzz_corpus";

Json ConfigOf(const std::string& family) {
  return ReadJsonFile(fmt::format("{}/{}.json", kConfigs, family)).value();
}

ModelConfig Parsed(const std::string& family) {
  auto parsed = ParseModelConfig(ConfigOf(family), Json::object());
  EXPECT_TRUE(parsed.ok()) << family << ": " << parsed.status();
  return parsed.value_or(ModelConfig());
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
  for (const Family& family : Families()) {
    EXPECT_THAT(message, HasSubstr(std::string(family.model_type)));
  }
}

TEST(ModelConfigTest, UnknownQuantizationIsRefusedByName) {
  std::string message =
      Refusal("glm4_moe", {{"quantization_config", {{"quant_method", "fp3"}, {"format", "odd"}}}});
  EXPECT_THAT(message, HasSubstr("quantization_config: quant_method \"fp3\" (format \"odd\")"));
  EXPECT_THAT(message, HasSubstr("supported: fp8, compressed-tensors, mxfp4"));
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
      {"qwen3_moe", {{"torch_dtype", "int8"}}, "torch_dtype \"int8\" is not supported"},
      {"qwen3_moe",
       {{"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4}}}},
       "rope scaling of type \"longrope\" is not supported; supported: default, linear, llama3, "
       "yarn"},
      {"qwen3_moe",
       {{"rope_scaling", {{"type", "dynamic"}, {"factor", 4}}}},
       "rope scaling of type \"dynamic\""},
      {"qwen3_moe",
       {{"rope_scaling", {{"type", "linear"}, {"rope_type", "yarn"}}}},
       "rope_scaling.rope_type is \"yarn\" but rope_scaling.type is \"linear\""},
      {"qwen3_moe", {{"rope_scaling", {{"type", "linear"}}}}, "rope_scaling.factor is missing"},
      {"qwen3_moe",
       {{"rope_scaling", {{"type", "linear"}, {"factor", 0}}}},
       "rope_scaling: factor must be between 1 and"},
      {"qwen3_moe",
       {{"rope_theta", 1}, {"rope_scaling", {{"type", "yarn"}, {"factor", 4}}}},
       "rope_theta 1 cannot be stretched by yarn"},
      {"qwen3_moe", {{"rope_scaling", {{"factor", 4}}}}, "a factor but no rope_type"},
      {"qwen3_moe",
       {{"rope_theta", nullptr}, {"rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}}}},
       "rope_parameters.full_attention: one rope for all layers"},
      {"qwen3_moe",
       {{"rope_scaling", "yarn"}},
       "rope_scaling must be an object or null, got \"yarn\""},
      {"qwen3_moe", {{"layer_types", {"full_attention"}}}, "layer_types has 1 entries"},
      {"qwen3_moe", {{"layer_types", {"mamba"}}}, "layer_types \"mamba\" is not supported"},
      {"qwen3_moe",
       {{"layer_types",
         {"sliding_attention", "full_attention", "full_attention", "full_attention"}}},
       "layer_types[0] is \"sliding_attention\" but there is no sliding_window"},
      {"glm4_moe",
       {{"layer_types", {"sliding_attention"}}},
       "layer_types \"sliding_attention\" is not supported"},
      {"deepseek_v3",
       {{"topk_method", "group_limited_greedy"}},
       "topk_method \"group_limited_greedy\" is not supported; supported: \"noaux_tc\""},
      {"deepseek_v3", {{"kv_lora_rank", nullptr}}, "kv_lora_rank is missing"},
      {"deepseek_v3", {{"partial_rotary_factor", 0.5}}, "beside qk_rope_head_dim"},
      {"deepseek_v3",
       {{"mlp_layer_types", {"sparse", "sparse", "sparse", "sparse"}}},
       "mlp_layer_types[0] is \"sparse\", which first_k_dense_replace 1 contradicts"},
      {"deepseek_v32", {{"q_lora_rank", nullptr}}, "q_lora_rank (absent)"},
      {"deepseek_v32",
       {{"index_head_dim", 8}},
       "qk_rope_head_dim 16 is more than index_head_dim 8"},
      {"glm_moe_dsa", {{"index_topk_pattern", "SFFF"}}, "layer 0 shares the selection"},
      {"glm_moe_dsa", {{"index_topk_pattern", "FX"}}, "index_topk_pattern \"FX\""},
      {"glm_moe_dsa", {{"indexer_types", {"full"}}}, "indexer_types has 1 entries"},
      {"minimax_m2", {{"attn_type_list", {1, 0}}}, "attn_type_list holds 0"},
      {"minimax_m2", {{"sliding_window", 64}}, "sliding_window 64"},
      {"minimax_m2", {{"shared_intermediate_size", 64}}, "shared_intermediate_size 64"},
      {"minimax_m2", {{"qk_norm_type", "per_head"}}, "qk_norm_type \"per_head\""},
      {"minimax_m2", {{"partial_rotary_factor", 1.0}}, "rotary_dim 16 is not head_dim 32"},
      {"gpt_oss-mxfp4", {{"rope_scaling", nullptr}}, "rope_scaling is missing"},
      {"qwen3_next", {{"linear_num_value_heads", 3}}, "linear_num_value_heads 3"},
      {"kimi_k25-int4", {{"text_config", nullptr}}, "text_config must be an object"},
      {"kimi_k25-int4",
       {{"quantization_config", {{"quant_method", "fp8"}}}},
       "text_config.quantization_config"},
      {"kimi_k25-int4", {{"eos_token_id", 512}}, "config.json: eos_token_id"},
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
       "head_dim 31 is odd"},
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

// The family's own attention and experts, in a line, so that the table reads like the models do.
TEST(ModelConfigTest, EveryFamilyIsRead) {
  for (const char* name :
       {"deepseek_v3",     "deepseek_v3-fp8", "deepseek_v32",  "deepseek_v32-fp8",
        "glm4_moe",        "glm4_moe-fp8",    "glm4_moe_lite", "glm_moe_dsa",
        "gpt_oss-mxfp4",   "kimi_k2",         "kimi_k2-int4",  "kimi_k25-int4",
        "minimax_m2",      "minimax_m2-fp8",  "mixtral",       "qwen2_moe",
        "qwen3_5_moe",     "qwen3_moe",       "qwen3_moe-fp8", "qwen3_moe-tp8-fp8",
        "qwen3_moe-w4a16", "qwen3_moe-w8a16", "qwen3_next",    "qwen3_next-fp8"}) {
    ModelConfig c = Parsed(name);
    EXPECT_FALSE(c.layers.empty()) << name;
    EXPECT_EQ(c.vocab, 512) << name;
    EXPECT_EQ(c.quantization.rules.empty(), std::string(name).find('-') == std::string::npos)
        << name;
  }
}

TEST(ModelConfigTest, ReadsDeepseekV3) {
  ModelConfig c = Parsed("deepseek_v3");
  const AttentionConfig& a = c.attentions.at(0);
  EXPECT_EQ(a.kind, AttentionKind::kMla);
  EXPECT_EQ(a.num_heads, 4);
  EXPECT_EQ(a.q_lora_rank, 64);
  EXPECT_EQ(a.kv_lora_rank, 48);
  EXPECT_EQ(a.nope_dim, 32);
  EXPECT_EQ(a.rope_dim, 16);
  EXPECT_EQ(a.v_head_dim, 32);
  EXPECT_FALSE(a.qkv_bias);
  EXPECT_FLOAT_EQ(a.latent_eps, 1e-6f);
  const double mscale = 0.1 * std::log(40.0) + 1;
  EXPECT_FLOAT_EQ(a.scale, static_cast<float>(mscale * mscale / std::sqrt(48.0)));
  const MoeConfig& m = c.moes.at(0);
  EXPECT_EQ(m.num_groups, 4);
  EXPECT_EQ(m.topk_groups, 2);
  EXPECT_EQ(m.score, RouterScore::kSigmoid);
  EXPECT_FLOAT_EQ(m.routed_scaling_factor, 2.5f);
  EXPECT_EQ(m.shared_intermediate, 32);
  EXPECT_FALSE(c.layers[0].moe.has_value());
  EXPECT_TRUE(c.layers[1].moe.has_value());
  // The published shape: (128 + 64)^-0.5 times the square of the same factor.
  EXPECT_NEAR(Accepted("deepseek_v3", {{"qk_nope_head_dim", 128}, {"qk_rope_head_dim", 64}})
                  .attentions.at(0)
                  .scale,
              0.13523, 1e-5);
  EXPECT_EQ(Accepted("deepseek_v3", {{"q_lora_rank", nullptr}}).attentions.at(0).q_lora_rank, 0);
  EXPECT_FALSE(Accepted("deepseek_v3", {{"rope_interleave", false}}).ropes.at(0).interleaved);
}

void ExpectRope(const RopeConfig& rope, bool interleaved, float cos_sin_scale,
                const std::vector<float>& inv_freq) {
  EXPECT_EQ(rope.interleaved, interleaved);
  EXPECT_FLOAT_EQ(rope.cos_sin_scale, cos_sin_scale);
  ASSERT_EQ(rope.inv_freq.size(), inv_freq.size());
  for (size_t j = 0; j < inv_freq.size(); ++j) {
    EXPECT_NEAR(rope.inv_freq[j] / inv_freq[j], 1, 1e-6) << j;
  }
}

// Computed apart, in Python.
TEST(ModelConfigTest, YarnStretchesTheSlowComponents) {
  ExpectRope(Parsed("deepseek_v3").ropes.at(0), true, 1,
             {1.0f, 0.31622776601683794f, 0.1f, 0.023914724805023366f, 0.005125f,
              0.000849862121170252f, 2.5e-05f, 7.905694150420949e-06f});
  // beta_fast = beta_slow: a step.
  ExpectRope(
      Parsed("kimi_k2").ropes.at(0), true, 1,
      {1.0f, 0.2586001363063102f, 0.0668740304976422f, 0.017293633402042617f, 0.00447213595499958f,
       1.8070233867863153e-05f, 4.672964941316314e-06f, 1.2084293707790075e-06f});
  // truncate false, and no mscale: cos and sin are scaled.
  ExpectRope(Parsed("gpt_oss-mxfp4").ropes.at(0), false, 1.3465735903f,
             {1.0f, 0.4747820554769007f, 0.22541800020287084f, 0.10702442147781144f,
              0.050813274815461475f, 0.01933500112654036f, 0.006794959489732219f,
              0.0020937923789696887f, 0.00045648391922324086f, 3.8308812373753384e-05f,
              1.818833668168956e-05f, 8.63549587543848e-06f, 4.09997848180298e-06f,
              1.9465962110014815e-06f, 9.242089502428302e-07f, 4.387978250864396e-07f});
}

TEST(ModelConfigTest, YarnAttentionFactors) {
  const auto scale = [](Json scaling) {
    scaling["type"] = "yarn";
    return Accepted("deepseek_v3", {{"rope_scaling", std::move(scaling)}})
        .ropes.at(0)
        .cos_sin_scale;
  };
  const auto m = [](double c) { return static_cast<float>(0.1 * c * std::log(40.0) + 1); };
  EXPECT_FLOAT_EQ(scale({{"factor", 40}}), m(1));
  EXPECT_FLOAT_EQ(scale({{"factor", 40}, {"mscale", 0.7}, {"mscale_all_dim", 1}}), m(0.7) / m(1));
  EXPECT_FLOAT_EQ(scale({{"factor", 40}, {"mscale", 0.7}}), m(1));
  EXPECT_FLOAT_EQ(scale({{"factor", 40}, {"attention_factor", 2}}), 2);
  // Without a factor: what max_position_embeddings is to the original length.
  EXPECT_FLOAT_EQ(scale({{"original_max_position_embeddings", 4096}}), m(1));
}

TEST(ModelConfigTest, LinearAndLlama3Scaling) {
  const ModelConfig plain = Parsed("qwen3_moe");
  const ModelConfig linear =
      Accepted("qwen3_moe", {{"rope_scaling", {{"type", "linear"}, {"factor", 4}}}});
  for (size_t j = 0; j < 16; ++j) {
    EXPECT_FLOAT_EQ(linear.ropes[0].inv_freq[j], plain.ropes[0].inv_freq[j] / 4);
  }
  const ModelConfig llama3 =
      Accepted("qwen3_moe", {{"rope_theta", nullptr},
                             {"rope_parameters",
                              {{"rope_type", "llama3"},
                               {"rope_theta", 1e6},
                               {"factor", 8},
                               {"low_freq_factor", 1},
                               {"high_freq_factor", 4},
                               {"original_max_position_embeddings", 8192}}}});
  for (size_t j = 0; j < 16; ++j) {
    const double f = plain.ropes[0].inv_freq[j], wavelength = 2 * M_PI / f;
    double expected = f;
    if (wavelength > 8192) {
      expected = f / 8;
    } else if (wavelength > 2048) {
      const double smooth = (8192 / wavelength - 1) / 3;
      expected = (1 - smooth) * f / 8 + smooth * f;
    }
    EXPECT_NEAR(llama3.ropes[0].inv_freq[j] / expected, 1, 1e-5) << j;
  }
}

TEST(ModelConfigTest, ReadsIndexers) {
  ModelConfig v32 = Parsed("deepseek_v32");
  const IndexerConfig& indexer =
      v32.indexers.at(static_cast<size_t>(v32.attentions.at(0).indexer.value()));
  EXPECT_EQ(indexer.num_heads, 12);
  EXPECT_EQ(indexer.head_dim, 32);
  EXPECT_EQ(indexer.top_k, 16);
  EXPECT_FLOAT_EQ(indexer.weight_scale, 1 / std::sqrt(12.0f * 32.0f));
  const RopeConfig& rope = v32.ropes.at(static_cast<size_t>(indexer.rope.value()));
  EXPECT_FALSE(rope.interleaved);
  EXPECT_TRUE(v32.ropes.at(0).interleaved);
  EXPECT_EQ(rope.inv_freq, v32.ropes.at(0).inv_freq);

  ModelConfig glm = Parsed("glm_moe_dsa");
  EXPECT_TRUE(glm.ropes.at(static_cast<size_t>(glm.indexers.at(0).rope.value())).interleaved);
  EXPECT_EQ(glm.attentions.at(0).v_head_dim, 40);
}

std::vector<bool> Shared(const Json& changes) {
  std::vector<bool> shared;
  for (const LayerConfig& l : Accepted("glm_moe_dsa", changes).layers) {
    shared.push_back(l.shares_selection);
  }
  return shared;
}

TEST(ModelConfigTest, LayersThatShareASelection) {
  EXPECT_THAT(Shared(Json::object()), ElementsAre(false, false, true, false));
  EXPECT_THAT(Shared({{"index_topk_freq", nullptr}}), ElementsAre(false, false, false, false));
  EXPECT_THAT(Shared({{"index_topk_pattern", "FSSF"}}), ElementsAre(false, true, true, false));
  EXPECT_THAT(Shared({{"indexer_types", {"full", "shared", "full", "shared"}}}),
              ElementsAre(false, true, false, true));
  // The published schedule: layers 0 to 2, then every fourth.
  EXPECT_THAT(
      Shared({{"num_hidden_layers", 8}, {"index_topk_freq", 4}, {"index_skip_topk_offset", 3}}),
      ElementsAre(false, false, false, true, true, true, false, true));
}

TEST(ModelConfigTest, ReadsMiniMaxM2) {
  ModelConfig c = Parsed("minimax_m2");
  EXPECT_EQ(c.attentions.at(0).qk_norm, QkNorm::kFullWidth);
  EXPECT_EQ(c.ropes.at(0).rotary_dim, 16);
  EXPECT_EQ(c.ropes.at(0).theta, 5e6);
  EXPECT_EQ(c.moes.at(0).score, RouterScore::kSigmoid);
  EXPECT_TRUE(c.moes.at(0).correction_bias);
  EXPECT_TRUE(c.moes.at(0).norm_topk_prob);
  EXPECT_FLOAT_EQ(c.moes.at(0).routed_scaling_factor, 1);
  EXPECT_EQ(c.moes.at(0).intermediate, 32);
  EXPECT_EQ(c.mtp_layers, 3);
  ModelConfig by_factor =
      Accepted("minimax_m2", {{"rotary_dim", nullptr}, {"partial_rotary_factor", 0.5}});
  EXPECT_EQ(by_factor.ropes.at(0).rotary_dim, 16);
}

TEST(ModelConfigTest, ReadsGptOss) {
  ModelConfig c = Parsed("gpt_oss-mxfp4");
  std::vector<int> windows;
  for (const LayerConfig& l : c.layers) {
    windows.push_back(c.attentions.at(static_cast<size_t>(l.attention)).window);
  }
  EXPECT_THAT(windows, ElementsAre(24, 0, 24, 0));
  EXPECT_TRUE(c.attentions.at(1).sinks);
  EXPECT_TRUE(c.attentions.at(1).qkv_bias);
  EXPECT_TRUE(c.attentions.at(1).o_bias);
  const MoeConfig& m = c.moes.at(0);
  EXPECT_EQ(m.activation, Activation::kSwigluOai);
  EXPECT_FLOAT_EQ(m.activation_alpha, 1.702f);
  EXPECT_FLOAT_EQ(m.activation_limit, 7);
  EXPECT_EQ(m.storage, ExpertStorage::kFusedInterleaved);
  EXPECT_TRUE(m.expert_bias);
  EXPECT_TRUE(m.router_bias);
  // Without layer_types the first of every two slides.
  ModelConfig alternating = Accepted("gpt_oss-mxfp4", {{"layer_types", nullptr}});
  EXPECT_EQ(alternating.layers[2].attention, 1);
  EXPECT_EQ(alternating.layers[3].attention, 0);
}

TEST(ModelConfigTest, ReadsQwenHybrids) {
  ModelConfig next = Parsed("qwen3_next");
  EXPECT_TRUE(next.norm_adds_one);
  std::vector<AttentionKind> kinds;
  for (const LayerConfig& l : next.layers) {
    kinds.push_back(next.attentions.at(static_cast<size_t>(l.attention)).kind);
  }
  EXPECT_THAT(kinds, ElementsAre(AttentionKind::kDeltaNet, AttentionKind::kDeltaNet,
                                 AttentionKind::kDeltaNet, AttentionKind::kGqa));
  const AttentionConfig& full = next.attentions.at(0);
  EXPECT_TRUE(full.output_gate);
  EXPECT_EQ(full.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(next.ropes.at(0).rotary_dim, 8);
  const AttentionConfig& delta = next.attentions.at(1);
  EXPECT_TRUE(delta.grouped_projections);
  EXPECT_EQ(delta.key_heads, 2);
  EXPECT_EQ(delta.value_heads, 4);
  EXPECT_EQ(delta.conv_kernel, 4);
  EXPECT_EQ(next.moes.at(0).shared_intermediate, 48);
  EXPECT_TRUE(next.moes.at(0).shared_gate);

  ModelConfig newer = Parsed("qwen3_5_moe");
  EXPECT_FALSE(newer.attentions.at(1).grouped_projections);
  EXPECT_EQ(newer.moes.at(0).storage, ExpertStorage::kFused);
  EXPECT_TRUE(newer.moes.at(0).norm_topk_prob);
  EXPECT_EQ(newer.ropes.at(0).theta, 1e7);
  EXPECT_EQ(newer.ropes.at(0).rotary_dim, 8);
  EXPECT_EQ(newer.layers[3].attention, 0);

  Json text = ConfigOf("qwen3_5_moe")["text_config"];
  text["architectures"] = {"Qwen3_5MoeForCausalLM"};
  auto text_only = ParseModelConfig(text, Json::object());
  ASSERT_TRUE(text_only.ok()) << text_only.status();
  EXPECT_EQ(text_only->hidden, newer.hidden);
}

TEST(ModelConfigTest, WrappersAreReadThrough) {
  Json config = ConfigOf("kimi_k25-int4");
  config["eos_token_id"] = {490, 491};
  ModelConfig c = ParseModelConfig(config, Json{{"eos_token_id", 488}}).value();
  EXPECT_EQ(c.architecture, "KimiK25ForConditionalGeneration");
  EXPECT_EQ(c.attentions.at(0).kind, AttentionKind::kMla);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(490, 491, 488));
  ASSERT_EQ(c.quantization.rules.size(), 1u);
  EXPECT_EQ(c.quantization.rules[0].group, 32);
  // A quantization_config beside text_config means the same.
  config["quantization_config"] = config["text_config"]["quantization_config"];
  config["text_config"].erase("quantization_config");
  EXPECT_EQ(ParseModelConfig(config, Json::object()).value().quantization.rules.size(), 1u);
}

TEST(ModelConfigTest, ReadsMixtralAndQwen2) {
  ModelConfig mixtral = Parsed("mixtral");
  EXPECT_EQ(mixtral.moes.at(0).num_experts, 8);
  EXPECT_EQ(mixtral.moes.at(0).intermediate, 48);
  EXPECT_TRUE(mixtral.moes.at(0).norm_topk_prob);
  EXPECT_EQ(mixtral.attentions.size(), 1u);
  ModelConfig sliding = Accepted("mixtral", {{"sliding_window", 100}});
  EXPECT_EQ(sliding.attentions.at(static_cast<size_t>(sliding.layers[1].attention)).window, 100);

  ModelConfig qwen2 = Parsed("qwen2_moe");
  EXPECT_TRUE(qwen2.attentions.at(0).qkv_bias);
  EXPECT_FALSE(qwen2.attentions.at(0).o_bias);
  EXPECT_EQ(qwen2.attentions.at(0).qk_norm, QkNorm::kNone);
  EXPECT_FALSE(qwen2.moes.at(0).norm_topk_prob);
  EXPECT_EQ(qwen2.moes.at(0).shared_intermediate, 80);
  EXPECT_TRUE(qwen2.moes.at(0).shared_gate);
}

TEST(ModelConfigTest, SlidingWindows) {
  const auto windows = [](const std::string& family, const Json& changes) {
    ModelConfig c = Accepted(family, changes);
    std::vector<int> out;
    for (const LayerConfig& l : c.layers) {
      out.push_back(c.attentions.at(static_cast<size_t>(l.attention)).window);
    }
    return out;
  };
  EXPECT_THAT(windows("qwen3_moe", {{"sliding_window", 64}}), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(windows("qwen3_moe", {{"sliding_window", 64}, {"use_sliding_window", true}}),
              ElementsAre(64, 64, 64, 64));
  EXPECT_THAT(windows("qwen2_moe", {{"sliding_window", 64}, {"use_sliding_window", true}}),
              ElementsAre(64, 0, 64));
  EXPECT_THAT(
      windows("qwen2_moe",
              {{"sliding_window", 64}, {"use_sliding_window", true}, {"max_window_layers", 1}}),
      ElementsAre(64, 0, 0));
  EXPECT_THAT(windows("qwen2_moe",
                      {{"sliding_window", 64},
                       {"use_sliding_window", true},
                       {"layer_types", {"full_attention", "full_attention", "sliding_attention"}}}),
              ElementsAre(0, 0, 64));
}

TEST(ModelConfigTest, AttentionBiasesFollowTheFamily) {
  const AttentionConfig qwen = Accepted("qwen3_moe", {{"attention_bias", true}}).attentions.at(0);
  EXPECT_TRUE(qwen.qkv_bias && qwen.o_bias);
  const AttentionConfig mla = Accepted("deepseek_v3", {{"attention_bias", true}}).attentions.at(0);
  EXPECT_TRUE(mla.qkv_bias && mla.o_bias);
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
