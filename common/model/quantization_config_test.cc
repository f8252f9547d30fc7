// SPDX-License-Identifier: Apache-2.0
#include "common/model/quantization_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::HasSubstr;

Json QuantizationOf(const std::string& name) {
  Json config =
      ReadJsonFile(fmt::format(KT_SOURCE_DIR "/common/model/fuzz_corpus/{}.json", name)).value();
  return config["quantization_config"];
}

std::string Refusal(const Json& object) {
  auto parsed = ParseQuantizationConfig(object);
  return parsed.ok() ? "accepted" : Message(parsed.status());
}

Json Group(const Json& weights, const Json& more = Json::object()) {
  Json group = {{"targets", {"Linear"}},
                {"weights",
                 {{"num_bits", 4},
                  {"type", "int"},
                  {"strategy", "group"},
                  {"group_size", 32},
                  {"symmetric", true}}}};
  group["weights"].update(weights);
  group.update(more);
  return group;
}

Json Compressed(const Json& groups, const Json& more = Json::object()) {
  Json object = {{"quant_method", "compressed-tensors"},
                 {"format", "pack-quantized"},
                 {"config_groups", groups}};
  object.update(more);
  return object;
}

TEST(QuantizationConfigTest, ReadsFp8Blocks) {
  QuantizationConfig c = ParseQuantizationConfig(QuantizationOf("minimax_m2-fp8")).value();
  ASSERT_EQ(c.rules.size(), 1u);
  EXPECT_EQ(c.rules[0].scheme, WeightScheme::kFp8Block);
  EXPECT_EQ(c.rules[0].block_rows, 128);
  EXPECT_EQ(c.rules[0].block_columns, 128);
  // "gate" is a whole part of a name, not a piece of one.
  EXPECT_EQ(c.RuleOf("model.layers.0.block_sparse_moe.gate"), nullptr);
  EXPECT_EQ(c.RuleOf("lm_head"), nullptr);
  EXPECT_EQ(c.RuleOf("model.layers.0.mlp.gate_proj"), &c.rules[0]);
  EXPECT_EQ(c.RuleOf("model.layers.0.self_attn.q_proj"), &c.rules[0]);
}

TEST(QuantizationConfigTest, ReadsFp8Channels) {
  QuantizationConfig c = ParseQuantizationConfig(QuantizationOf("glm4_moe-fp8")).value();
  ASSERT_EQ(c.rules.size(), 1u);
  EXPECT_EQ(c.rules[0].scheme, WeightScheme::kFp8Channel);
  EXPECT_EQ(c.RuleOf("model.layers.1.mlp.gate"), nullptr);
  EXPECT_NE(c.RuleOf("model.layers.1.mlp.gate.x"), nullptr) << "ignore names whole modules";
}

TEST(QuantizationConfigTest, ReadsPackedIntegers) {
  QuantizationConfig kimi = ParseQuantizationConfig(QuantizationOf("kimi_k2-int4")).value();
  ASSERT_EQ(kimi.rules.size(), 1u);
  EXPECT_EQ(kimi.rules[0].scheme, WeightScheme::kPackedInt);
  EXPECT_EQ(kimi.rules[0].bits, 4);
  EXPECT_EQ(kimi.rules[0].group, 32);
  EXPECT_EQ(kimi.RuleOf("model.layers.0.mlp.gate_proj"), nullptr);
  EXPECT_EQ(kimi.RuleOf("model.layers.1.self_attn.o_proj"), nullptr);
  EXPECT_EQ(kimi.RuleOf("model.layers.1.mlp.shared_experts.up_proj"), nullptr);
  EXPECT_NE(kimi.RuleOf("model.layers.1.mlp.experts.3.gate_proj"), nullptr);

  QuantizationConfig w8 = ParseQuantizationConfig(QuantizationOf("qwen3_moe-w8a16")).value();
  EXPECT_EQ(w8.rules[0].bits, 8);
  EXPECT_EQ(w8.rules[0].group, 0);
  QuantizationConfig w4 = ParseQuantizationConfig(QuantizationOf("qwen3_moe-w4a16")).value();
  EXPECT_EQ(w4.rules[0].group, 128);
}

TEST(QuantizationConfigTest, ReadsMxfp4) {
  QuantizationConfig c = ParseQuantizationConfig(QuantizationOf("gpt_oss-mxfp4")).value();
  ASSERT_EQ(c.rules.size(), 1u);
  EXPECT_EQ(c.rules[0].scheme, WeightScheme::kMxfp4Fused);
  EXPECT_EQ(c.RuleOf("model.layers.2.self_attn.q_proj"), nullptr) << "model.layers.*.self_attn";
  EXPECT_EQ(c.RuleOf("model.layers.2.mlp.router"), nullptr);
  EXPECT_NE(c.RuleOf("model.layers.2.mlp.experts.gate_up_proj"), nullptr);
}

TEST(QuantizationConfigTest, GroupsHaveFormatsAndTargetsOfTheirOwn) {
  Json fp8 = {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}};
  Json block = {
      {"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", {128, 64}}};
  QuantizationConfig c =
      ParseQuantizationConfig(
          Compressed({{"group_0", Group(Json::object())},
                      {"group_1", Group(fp8, {{"format", "float-quantized"},
                                              {"targets", {"re:.*self_attn\\..*"}}})},
                      {"group_2", Group(block, {{"format", "float-quantized"},
                                                {"targets", {"model.layers.0.mlp.up_proj"}}})}}))
          .value();
  ASSERT_EQ(c.rules.size(), 3u);
  EXPECT_EQ(c.RuleOf("model.layers.0.self_attn.q_proj"), &c.rules[1]);
  EXPECT_EQ(c.RuleOf("model.layers.0.mlp.up_proj"), &c.rules[2]);
  EXPECT_EQ(c.RuleOf("model.layers.1.mlp.up_proj"), &c.rules[0]);
  EXPECT_EQ(c.rules[2].block_columns, 64);
}

TEST(QuantizationConfigTest, RegularExpressionsMatchFromTheBeginning) {
  ModulePattern pattern = ModulePattern::Whole("re:model\\.layers\\.[01]\\.").value();
  EXPECT_TRUE(pattern.Matches("model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(pattern.Matches("model.layers.2.mlp.up_proj"));
  EXPECT_FALSE(pattern.Matches("x.model.layers.1.mlp.up_proj"));
}

TEST(QuantizationConfigTest, PartsAreWholeDottedParts) {
  EXPECT_TRUE(ModulePattern::Part("mlp.gate").value().Matches("a.mlp.gate"));
  EXPECT_TRUE(ModulePattern::Part("a.mlp").value().Matches("a.mlp.gate"));
  EXPECT_FALSE(ModulePattern::Part("mlp.gate").value().Matches("a.mlp.gate_proj"));
  EXPECT_FALSE(ModulePattern::Part("lp.gate").value().Matches("a.mlp.gate"));
  EXPECT_TRUE(ModulePattern::Part("layers.*.attn").value().Matches("m.layers.12.attn.q"));
  EXPECT_FALSE(ModulePattern::Part("layers.*.attn").value().Matches("m.layers.12.attn_q"));
}

// Nested repetition, which takes backtracking engines exponential time.
TEST(QuantizationConfigTest, HostilePatternsCostLittle) {
  ModulePattern pattern = ModulePattern::Whole("re:(a*)*(a*)*(a*)*b").value();
  EXPECT_FALSE(pattern.Matches(std::string(500, 'a')));
  Json object =
      Compressed({{"g", Group(Json::object())}}, {{"ignore", {"re:(((((a{9}){9}){9}){9}){9})"}}});
  EXPECT_THAT(Refusal(object), HasSubstr("cannot be compiled as a regular expression"));
  object["ignore"] = {"re:(unclosed"};
  EXPECT_THAT(Refusal(object), HasSubstr("ignore: \"re:(unclosed\" cannot be compiled"));
  object["ignore"] = Json::array();
  for (int i = 0; i < 300; ++i) object["ignore"].push_back("re:x");
  EXPECT_THAT(Refusal(object), HasSubstr("more than 256 regular expressions"));
}

TEST(QuantizationConfigTest, WhatIsNotServedIsRefusedByName) {
  struct Case {
    Json object;
    const char* message;
  };
  const Json plain = Group(Json::object());
  const Case cases[] = {
      {Json(1), "must be a JSON object"},
      {Json::object(), "quant_method is missing"},
      {{{"quant_method", "awq"}, {"bits", 4}},
       "quant_method \"awq\" (format (absent)) is not served"},
      {{{"quant_method", "gptq"}}, "quant_method \"gptq\""},
      {{{"quant_method", "fp8"}}, "weight_block_size must be two integers"},
      {{{"quant_method", "fp8"}, {"weight_block_size", {128}}}, "weight_block_size"},
      {{{"quant_method", "fp8"}, {"weight_block_size", {0, 128}}}, "weight_block_size"},
      {{{"quant_method", "fp8"},
        {"weight_block_size", {128, 128}},
        {"activation_scheme", "static"}},
       "activation_scheme \"static\" is not supported; supported: \"dynamic\""},
      {{{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"fmt", "e5m2"}},
       "fmt \"e5m2\" is not supported; supported: \"e4m3\", \"float8_e4m3fn\""},
      {Compressed(Json::object()), "config_groups must be an object of 1 to 64 groups"},
      {Compressed(Json::array()), "config_groups must be an object"},
      {Compressed({{"g", 1}}), "config_groups.\"g\": must be a JSON object"},
      {Compressed({{"g", Group({{"symmetric", false}})}}), "weights.symmetric false"},
      {Compressed({{"g", Group({{"num_bits", 3}})}}), "weights: num_bits must be between 4 and 8"},
      {Compressed({{"g", Group({{"num_bits", 6}})}}), "weights.num_bits 6 is not supported"},
      {Compressed({{"g", Group({{"type", "float"}})}}), "weights.type \"float\""},
      {Compressed({{"g", Group({{"strategy", "tensor"}})}}), "weights.strategy \"tensor\""},
      {Compressed({{"g", Group({{"actorder", "group"}})}}), "weights.actorder \"group\""},
      {Compressed({{"g", Group({{"dynamic", true}})}}), "weights.dynamic true"},
      {Compressed({{"g", Group({{"group_size", 33}})}}), "weights.group_size 33"},
      {Compressed({{"g", Group({{"group_size", nullptr}})}}), "weights.group_size is missing"},
      {Compressed({{"g", Group(Json::object(), {{"targets", Json::array()}})}}),
       "targets is missing"},
      {Compressed({{"g", Group(Json::object(), {{"input_activations", {{"num_bits", 8}}}})}}),
       "input_activations"},
      {Compressed({{"g", Group(Json::object(), {{"output_activations", {{"num_bits", 8}}}})}}),
       "output_activations"},
      {Compressed({{"g", plain}}, {{"format", "marlin-24"}}), "format \"marlin-24\""},
      {Compressed({{"g", plain}}, {{"kv_cache_scheme", {{"num_bits", 8}}}}), "kv_cache_scheme"},
      {Compressed({{"g", plain}}, {{"transform_config", {{"config_groups", {{"a", 1}}}}}}),
       "transform_config"},
      {Compressed({{"g", plain}}, {{"sparsity_config", {{"format", "sparse-24-bitmask"}}}}),
       "sparsity_config.format \"sparse-24-bitmask\""},
      {Compressed({{"g", plain}}, {{"ignore", {1}}}), "ignore"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Refusal(c.object), HasSubstr(c.message)) << DumpJson(c.object);
  }
}

}  // namespace
}  // namespace kt
