// SPDX-License-Identifier: Apache-2.0
#include "common/weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "common/base/status.h"
#include "common/weights/test_checkpoint.h"

namespace kt {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kModels = KT_SOURCE_DIR "/tests/data/models";
const std::string kExpert = "model.layers.1.mlp.experts.3.";

// A copy of a fixture that a test bends. Check() writes it and gives what opening it and comparing
// it with its config says.
class BentCheckpoint {
 public:
  explicit BentCheckpoint(const std::string& family = "qwen3_moe")
      : tensors(TensorsOf(kModels + "/" + family)),
        config(ReadJsonFile(kModels + "/" + family + "/config.json").value()) {}

  std::string Check() const {
    dir.Write("model.safetensors", ShardBytes(tensors));
    return CheckFiles();
  }

  // The same in two shards and an index; experts are in the second.
  std::string CheckSharded(
      const std::function<void(TestTensors&, TestTensors&, Json&)>& bend) const {
    TestTensors first, second;
    Json map = Json::object();
    for (const auto& [name, tensor] : tensors) {
      bool expert = name.find(".experts.") != std::string::npos;
      (expert ? second : first)[name] = tensor;
      map[name] = expert ? "b.safetensors" : "a.safetensors";
    }
    bend(first, second, map);
    dir.Write("a.safetensors", ShardBytes(first));
    if (!second.empty()) dir.Write("b.safetensors", ShardBytes(second));
    dir.Write("model.safetensors.index.json", Json{{"weight_map", map}}.dump());
    return CheckFiles();
  }

  std::string CheckFiles() const {
    auto model = ParseModelConfig(config, Json::object());
    if (!model.ok()) return Message(model.status());
    auto checkpoint = Checkpoint::Open(dir.path());
    if (!checkpoint.ok()) return Message(checkpoint.status());
    absl::Status status = CheckManifest(*model, **checkpoint);
    return status.ok() ? "fits" : Message(status);
  }

  TestDir dir;
  TestTensors tensors;
  Json config;
};

TEST(CheckpointTest, FixturesFitTheirConfigs) {
  for (const char* family : {"qwen3_moe", "glm4_moe"}) {
    std::string dir = kModels + "/" + family;
    auto checkpoint = Checkpoint::Open(dir);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    absl::Status status = CheckManifest(LoadModelConfig(dir).value(), **checkpoint);
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(CheckpointTest, DemoModelsFitTheirConfigs) {
  int found = 0;
  for (const char* name : {"smol-moe-mirror", "smol-moe-bf16"}) {
    std::string dir = std::string(KT_SOURCE_DIR "/build/models/") + name;
    if (!std::filesystem::exists(dir)) continue;
    ++found;
    auto checkpoint = Checkpoint::Open(dir);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    absl::Status status = CheckManifest(LoadModelConfig(dir).value(), **checkpoint);
    EXPECT_TRUE(status.ok()) << status;
  }
  if (found == 0) GTEST_SKIP() << "no demo model in build/models: run tools/make_demo_model.py";
}

TEST(CheckpointTest, TensorsLieInTheFile) {
  auto checkpoint = Checkpoint::Open(kModels + "/qwen3_moe").value();
  const TensorInfo* t = checkpoint->Find("model.layers.0.mlp.gate.weight");
  ASSERT_NE(t, nullptr);
  EXPECT_THAT(t->shape, ElementsAre(16, 128));
  EXPECT_EQ(t->data.size(), 16u * 128 * 2);
  EXPECT_EQ(checkpoint->Find("nothing"), nullptr);
  int64_t sum = 0;
  for (const auto& [name, info] : checkpoint->tensors())
    sum += static_cast<int64_t>(info.data.size());
  EXPECT_EQ(checkpoint->bytes(), sum);
}

TEST(CheckpointTest, ReleasedTensorsReadTheSameAgain) {
  auto checkpoint = Checkpoint::Open(kModels + "/qwen3_moe").value();
  const TensorInfo& t = *checkpoint->Find("model.embed_tokens.weight");
  std::vector<uint8_t> before(t.data.begin(), t.data.end());
  checkpoint->Release(t);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), t.data.begin()));
}

TEST(CheckpointTest, NamesFollowTheConfig) {
  ModelConfig config = LoadModelConfig(kModels + "/glm4_moe").value();
  ModelTensors names = TensorNames(config);
  EXPECT_EQ(names.lm_head, "lm_head.weight");
  EXPECT_EQ(names.layers[0].gate, "model.layers.0.mlp.gate_proj.weight");
  EXPECT_EQ(names.layers[0].router, "");
  EXPECT_EQ(names.layers[1].gate, "");
  EXPECT_EQ(names.layers[1].correction_bias, "model.layers.1.mlp.gate.e_score_correction_bias");
  EXPECT_EQ(names.layers[1].shared_down, "model.layers.1.mlp.shared_experts.down_proj.weight");
  EXPECT_EQ(names.layers[3].experts[15].up, "model.layers.3.mlp.experts.15.up_proj.weight");
  EXPECT_EQ(names.layers[3].q_bias, "model.layers.3.self_attn.q_proj.bias");
  config.tie_word_embeddings = true;
  EXPECT_EQ(TensorNames(config).lm_head, "model.embed_tokens.weight");
}

TEST(CheckpointTest, TwoShardsFitToo) {
  EXPECT_EQ(BentCheckpoint().CheckSharded([](TestTensors&, TestTensors&, Json&) {}), "fits");
}

TEST(CheckpointTest, ALayerOfOneExpertIsValid) {
  BentCheckpoint bent;
  bent.config.update({{"num_experts", 1}, {"num_experts_per_tok", 1}});
  std::erase_if(bent.tensors, [](const auto& item) {
    return item.first.find(".experts.") != std::string::npos &&
           item.first.find(".experts.0.") == std::string::npos;
  });
  for (auto& [name, t] : bent.tensors) {
    if (!name.ends_with(".mlp.gate.weight")) continue;
    t.shape[0] = 1;
    t.data.resize(t.data.size() / 16);
  }
  EXPECT_EQ(bent.Check(), "fits");
}

TEST(CheckpointTest, MissingDirectoryAndEmptyDirectory) {
  EXPECT_THAT(Message(Checkpoint::Open("/nonexistent").status()),
              HasSubstr("holds neither model.safetensors nor"));
  TestDir dir;
  EXPECT_TRUE(absl::IsNotFound(Checkpoint::Open(dir.path()).status()));
  std::filesystem::create_directory(dir.path() + "/model.safetensors");
  EXPECT_THAT(Message(Checkpoint::Open(dir.path()).status()), HasSubstr("is not a regular file"));
}

TEST(CheckpointTest, MissingShardIsNamed) {
  std::string message = BentCheckpoint().CheckSharded(
      [](TestTensors&, TestTensors& second, Json&) { second.clear(); });
  EXPECT_THAT(message, AllOf(HasSubstr("index.json"), HasSubstr("b.safetensors: no such file")));
}

TEST(CheckpointTest, IndexOutsideTheDirectoryIsRefused) {
  std::string message = BentCheckpoint().CheckSharded(
      [](TestTensors&, TestTensors&, Json& map) { map["lm_head.weight"] = "../a.safetensors"; });
  EXPECT_THAT(message, HasSubstr("places \"lm_head.weight\" in \"../a.safetensors\""));
}

TEST(CheckpointTest, IndexThatContradictsItsShardsIsRefused) {
  std::string message = BentCheckpoint().CheckSharded(
      [](TestTensors&, TestTensors&, Json& map) { map["lm_head.weight"] = "b.safetensors"; });
  EXPECT_THAT(message, HasSubstr("b.safetensors: tensor \"lm_head.weight\" is not there"));
}

TEST(CheckpointTest, TensorInTwoShardsIsRefused) {
  std::string message =
      BentCheckpoint().CheckSharded([](TestTensors& first, TestTensors& second, Json&) {
        second["lm_head.weight"] = first["lm_head.weight"];
      });
  EXPECT_THAT(message, AllOf(HasSubstr("b.safetensors: tensor \"lm_head.weight\" is in"),
                             HasSubstr("a.safetensors too")));
}

TEST(CheckpointTest, TruncatedAt60PercentIsRefused) {
  BentCheckpoint bent;
  std::string whole = ShardBytes(bent.tensors);
  bent.dir.Write("model.safetensors", whole.substr(0, whole.size() * 6 / 10));
  EXPECT_THAT(bent.CheckFiles(), AllOf(HasSubstr("model.safetensors: truncated: \"model.layers."),
                                       HasSubstr("the file holds")));
}

TEST(CheckpointTest, HtmlSavedAsAShardIsRefused) {
  BentCheckpoint bent;
  bent.dir.Write("model.safetensors", "<html><head><title>Not found</title></head></html>");
  EXPECT_THAT(bent.CheckFiles(), HasSubstr("model.safetensors: looks like an HTML page"));
}

TEST(CheckpointTest, DroppedExpertIsNamed) {
  BentCheckpoint bent;
  for (const char* part : {"gate", "up", "down"})
    bent.tensors.erase(fmt::format("{}{}_proj.weight", kExpert, part));
  EXPECT_THAT(bent.Check(),
              HasSubstr("tensor \"" + kExpert +
                        "down_proj.weight\" (BF16 [128, 32]) is missing (and 2 more missing)"));
}

TEST(CheckpointTest, SwappedShapesAreNamed) {
  BentCheckpoint bent;
  auto& shape = bent.tensors[kExpert + "up_proj.weight"].shape;
  std::swap(shape[0], shape[1]);
  EXPECT_THAT(bent.Check(),
              HasSubstr("model.safetensors: tensor \"" + kExpert +
                        "up_proj.weight\" is BF16 [128, 32], expected BF16 [32, 128]"));
}

TEST(CheckpointTest, UnexpectedTensorIsNamed) {
  BentCheckpoint bent;
  bent.tensors[kExpert + "up_proj.weight_scale_inv"] = {DType::kF32, {1, 1}, "abcd"};
  EXPECT_THAT(bent.Check(),
              HasSubstr("tensor \"" + kExpert + "up_proj.weight_scale_inv\" is not expected"));
}

TEST(CheckpointTest, OneFaultOfEachKindIsReported) {
  BentCheckpoint bent;
  bent.tensors.erase("lm_head.weight");
  bent.tensors["x"] = {DType::kU8, {1}, "a"};
  bent.tensors["model.norm.weight"].shape = {2, 64};
  bent.tensors[kExpert + "up_proj.weight"].dtype = DType::kF16;
  std::string message = bent.Check();
  for (const char* part :
       {"is missing", "\"x\" is not expected", "is BF16 [2, 64], expected BF16 [128]", "is F16"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
}

TEST(CheckpointTest, VectorsAndRouterMayBeF32ButMatricesMayNot) {
  BentCheckpoint bent;
  auto widen = [&](const std::string& name) {
    TestTensor& t = bent.tensors.at(name);
    t.dtype = DType::kF32;
    t.data.resize(t.data.size() * 2);
  };
  widen("model.norm.weight");
  widen("model.layers.2.mlp.gate.weight");
  EXPECT_EQ(bent.Check(), "fits");
  widen(kExpert + "up_proj.weight");
  EXPECT_THAT(bent.Check(),
              HasSubstr("up_proj.weight\" is F32, which no engine serves; expected BF16"));
}

TEST(CheckpointTest, TiedEmbeddingsHaveNoHead) {
  BentCheckpoint bent;
  bent.config["tie_word_embeddings"] = true;
  EXPECT_THAT(bent.Check(), HasSubstr("tensor \"lm_head.weight\" is not expected, as config.json "
                                      "says tie_word_embeddings true"));
  bent.tensors.erase("lm_head.weight");
  EXPECT_EQ(bent.Check(), "fits");
}

TEST(CheckpointTest, PredictionLayersAreSkippedOnlyWhereTheConfigHasThem) {
  BentCheckpoint bent("glm4_moe");
  ASSERT_TRUE(bent.tensors.contains("model.layers.4.input_layernorm.weight"));
  EXPECT_EQ(bent.Check(), "fits");
  bent.config["num_nextn_predict_layers"] = 0;
  EXPECT_THAT(bent.Check(), HasSubstr("\"model.layers.4."));
  bent.config["num_nextn_predict_layers"] = 1;
  bent.config["num_hidden_layers"] = 3;
  EXPECT_THAT(bent.Check(),
              AllOf(HasSubstr("\"model.layers.4."), Not(HasSubstr("\"model.layers.3."))));
}

}  // namespace
}  // namespace kt
