// SPDX-License-Identifier: Apache-2.0
#include "common/weights/weight_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kModels = KT_SOURCE_DIR "/tests/data/models";
const std::string kFixtures = KT_SOURCE_DIR "/../shared/fixtures";

struct Opened {
  explicit Opened(const std::string& dir)
      : config(LoadModelConfig(dir).value()),
        checkpoint(Checkpoint::Open(dir).value()),
        model(ResolveWeights(config, *checkpoint).value()) {}
  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  StoredModel model;
};

TEST(WeightSummaryTest, CountsEveryByteOnce) {
  Opened o(kModels + "/qwen3_moe");
  const WeightSummary s = Summarize(o.model, o.config);
  EXPECT_EQ(s.bytes(), o.checkpoint->bytes());
  EXPECT_EQ(s.embeddings.precision, "BF16");
  ASSERT_EQ(s.layers.size(), 4u);
  EXPECT_EQ(s.layers[1].attention.precision, "BF16");
  EXPECT_EQ(s.layers[1].ffn.precision, "-");
  EXPECT_EQ(s.layers[1].experts.bytes, 16 * 3 * 32 * 128 * 2);
  EXPECT_EQ(s.expert_bytes(), 4 * 16 * 3 * 32 * 128 * 2);
  EXPECT_EQ(KtMethodOf(o.model).value(), "BF16");
}

// attention, ffn and experts of the last layer, and the kt-method.
TEST(WeightSummaryTest, NamesThePrecisionsOfFixtures) {
  if (!std::filesystem::exists(kFixtures)) GTEST_SKIP() << "no fixtures in " << kFixtures;
  const std::string block = "FP8 block 128x128", channel = "FP8 per channel";
  const std::map<std::string, std::vector<std::string>> expected = {
      {"deepseek_v3", {"BF16", "BF16", "BF16", "BF16"}},
      {"deepseek_v3-fp8", {block, block, block, "FP8"}},
      {"deepseek_v32-fp8", {block + " + BF16", block, block, "FP8"}},
      {"glm4_moe-fp8", {channel, channel, channel, "FP8_PERCHANNEL"}},
      {"kimi_k2-int4", {"BF16", "BF16", "INT4 group 32", "RAWINT4"}},
      {"qwen3_moe-w4a16", {"BF16", "-", "INT4 group 128", "RAWINT4"}},
      {"qwen3_moe-w8a16", {"BF16", "-", "INT8 per channel", "RAWINT4"}},
      {"gpt_oss-mxfp4", {"BF16", "-", "MXFP4", "MXFP4"}},
      {"qwen3_5_moe", {"BF16", "BF16", "BF16", "BF16"}},
  };
  for (const auto& [name, words] : expected) {
    Opened o(kFixtures + "/" + name);
    const WeightSummary s = Summarize(o.model, o.config);
    EXPECT_EQ(s.layers.back().attention.precision, words[0]) << name;
    EXPECT_EQ(s.layers.back().ffn.precision, words[1]) << name;
    EXPECT_EQ(s.layers.back().experts.precision, words[2]) << name;
    EXPECT_EQ(KtMethodOf(o.model).value(), words[3]) << name;
    EXPECT_LE(s.bytes(), o.checkpoint->bytes()) << name;
    EXPECT_GT(s.bytes(), o.checkpoint->bytes() * 8 / 10) << name;
  }
}

StoredModel ModelOf(std::initializer_list<WeightCode> codes) {
  static const TensorInfo tensor;
  StoredModel model;
  for (WeightCode code : codes) {
    StoredMatrix m{.view = {.n = 4, .k = 64, .code = code, .block_columns = 32}, .codes = &tensor};
    model.layers.emplace_back().experts.push_back({.ffn = {m, m, m}});
  }
  return model;
}

TEST(WeightSummaryTest, MethodsOfMixedCheckpoints) {
  EXPECT_EQ(KtMethodOf(ModelOf({WeightCode::kBf16, WeightCode::kInt8, WeightCode::kF16})).value(),
            "RAWINT4");
  EXPECT_EQ(KtMethodOf(ModelOf({WeightCode::kInt4, WeightCode::kInt8})).value(), "RAWINT4");
  EXPECT_THAT(Message(KtMethodOf(ModelOf({WeightCode::kInt4, WeightCode::kFp4E2m1})).status()),
              HasSubstr("RAWINT4 in layer 0, MXFP4 in layer 1"));
  EXPECT_TRUE(absl::IsFailedPrecondition(KtMethodOf(ModelOf({})).status()));
}

TEST(WeightSummaryTest, MethodsAreChosenAgainstTheCheckpoint) {
  EXPECT_EQ(ChooseKtMethod("", "FP8").value(), "FP8");
  EXPECT_EQ(ChooseKtMethod("FP8", "FP8").value(), "FP8");
  EXPECT_EQ(ChooseKtMethod("rawint4", "RAWINT4").value(), "RAWINT4");
  EXPECT_EQ(ChooseKtMethod("AMXINT8", "BF16").value(), "AMXINT8");
  EXPECT_EQ(ChooseKtMethod("amxint4", "FP8").value(), "AMXINT4");
  EXPECT_THAT(Message(ChooseKtMethod("fp8", "RAWINT4").status()),
              AllOf(HasSubstr("kt-method FP8 contradicts the checkpoint"),
                    HasSubstr("leave kt-method out or pass RAWINT4, or AMXINT8 or AMXINT4")));
  EXPECT_THAT(Message(ChooseKtMethod("MOE_INT4", "BF16").status()),
              HasSubstr("kt-method MOE_INT4 is not served; supported: BF16, FP8, FP8_PERCHANNEL, "
                        "RAWINT4, MXFP4, AMXINT8, AMXINT4"));
  EXPECT_THAT(Message(ChooseKtMethod("bogus", "BF16").status()),
              HasSubstr("kt-method \"bogus\" is unknown"));
}

TEST(WeightSummaryTest, RoundedExpertsTakeTheirNewSize) {
  Opened o(kModels + "/qwen3_moe");
  const WeightSummary stored = Summarize(o.model, o.config);
  const WeightSummary s = Summarize(o.model, o.config, "AMXINT4");
  EXPECT_EQ(s.layers[1].experts.precision, "INT4 per row (AMXINT4)");
  EXPECT_EQ(s.layers[1].experts.bytes, 16 * (2 * 32 * (64 + 4) + 128 * (16 + 4)));
  EXPECT_EQ(s.layers[1].attention.bytes, stored.layers[1].attention.bytes);
  EXPECT_EQ(Summarize(o.model, o.config, "AMXINT8").layers[0].experts.bytes,
            16 * (2 * 32 * (128 + 4) + 128 * (32 + 4)));
  EXPECT_EQ(Summarize(o.model, o.config, "BF16").bytes(), stored.bytes());
}

}  // namespace
}  // namespace kt
