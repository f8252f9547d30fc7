// SPDX-License-Identifier: Apache-2.0
#include "common/weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "common/weights/test_checkpoint.h"

namespace kt {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kModels = KT_SOURCE_DIR "/tests/data/models";

BentCheckpoint Bent(const std::string& family = "qwen3_moe") {
  return BentCheckpoint(kModels + "/" + family);
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

TEST(CheckpointTest, TwoShardsFitToo) {
  EXPECT_EQ(Bent().CheckSharded([](TestTensors&, TestTensors&, Json&) {}), "fits");
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
  std::string message =
      Bent().CheckSharded([](TestTensors&, TestTensors& second, Json&) { second.clear(); });
  EXPECT_THAT(message, AllOf(HasSubstr("index.json"), HasSubstr("b.safetensors: no such file")));
}

TEST(CheckpointTest, IndexOutsideTheDirectoryIsRefused) {
  std::string message = Bent().CheckSharded(
      [](TestTensors&, TestTensors&, Json& map) { map["lm_head.weight"] = "../a.safetensors"; });
  EXPECT_THAT(message, HasSubstr("places \"lm_head.weight\" in \"../a.safetensors\""));
}

TEST(CheckpointTest, IndexThatContradictsItsShardsIsRefused) {
  std::string message = Bent().CheckSharded(
      [](TestTensors&, TestTensors&, Json& map) { map["lm_head.weight"] = "b.safetensors"; });
  EXPECT_THAT(message, HasSubstr("b.safetensors: tensor \"lm_head.weight\" is not there"));
}

TEST(CheckpointTest, TensorInTwoShardsIsRefused) {
  std::string message = Bent().CheckSharded([](TestTensors& first, TestTensors& second, Json&) {
    second["lm_head.weight"] = first["lm_head.weight"];
  });
  EXPECT_THAT(message, AllOf(HasSubstr("b.safetensors: tensor \"lm_head.weight\" is in"),
                             HasSubstr("a.safetensors too")));
}

TEST(CheckpointTest, TruncatedAt60PercentIsRefused) {
  BentCheckpoint bent = Bent();
  std::string whole = ShardBytes(bent.tensors);
  bent.dir.Write("model.safetensors", whole.substr(0, whole.size() * 6 / 10));
  EXPECT_THAT(bent.CheckFiles(), AllOf(HasSubstr("model.safetensors: truncated: \"model.layers."),
                                       HasSubstr("the file holds")));
}

TEST(CheckpointTest, HtmlSavedAsAShardIsRefused) {
  BentCheckpoint bent = Bent();
  bent.dir.Write("model.safetensors", "<html><head><title>Not found</title></head></html>");
  EXPECT_THAT(bent.CheckFiles(), HasSubstr("model.safetensors: looks like an HTML page"));
}

// The format allows 100 MB of header, and spaces behind its JSON.
TEST(CheckpointTest, HeadersOf10MegabytesAreReadOrRefusedByWhatTheyHold) {
  BentCheckpoint bent = Bent();
  const std::string whole = ShardBytes(bent.tensors);
  uint64_t length = 0;
  std::memcpy(&length, whole.data(), sizeof(length));
  std::string header = whole.substr(sizeof(length), length);
  header.resize(10'000'000, ' ');
  bent.dir.Write("model.safetensors", ShardBytes(header, whole.substr(sizeof(length) + length)));
  EXPECT_EQ(bent.CheckFiles(), "fits");
  bent.dir.Write("model.safetensors", ShardBytes(std::string(10'000'000, '['), ""));
  EXPECT_THAT(bent.CheckFiles(), HasSubstr("model.safetensors: "));
  bent.dir.Write("model.safetensors", ShardBytes(header, "").substr(0, 5'000'000));
  EXPECT_THAT(bent.CheckFiles(), HasSubstr("model.safetensors: truncated"));
}

}  // namespace
}  // namespace kt
