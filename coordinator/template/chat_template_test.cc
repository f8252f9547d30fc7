// SPDX-License-Identifier: Apache-2.0
#include "coordinator/template/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/base/status.h"

namespace kt {
namespace {

class ChatTemplateTest : public testing::Test {
 protected:
  ChatTemplateTest()
      : dir_(testing::TempDir() + "/chat_template_test." + std::to_string(getpid())) {
    std::filesystem::create_directory(dir_);
  }
  ~ChatTemplateTest() override { std::filesystem::remove_all(dir_); }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ + "/" + name) << text;
    return dir_ + "/" + name;
  }

  const std::string dir_;
};

TEST_F(ChatTemplateTest, FlagComesBeforeFileBeforeConfig) {
  Write("tokenizer_config.json", R"({"chat_template": "of the config"})");
  EXPECT_EQ(*LoadChatTemplate(dir_, ""), "of the config");
  Write("chat_template.jinja", "of the file");
  EXPECT_EQ(*LoadChatTemplate(dir_, ""), "of the file");
  EXPECT_EQ(*LoadChatTemplate(dir_, Write("mine.jinja", "mine")), "mine");
}

TEST_F(ChatTemplateTest, DefaultIsTakenFromNamedTemplates) {
  Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(*LoadChatTemplate(dir_, ""), "d");
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"}]})");
  EXPECT_EQ(LoadChatTemplate(dir_, "").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ChatTemplateTest, NoTemplateIsFailedPreconditionThatSaysHowToGiveOne) {
  auto status = LoadChatTemplate(dir_, "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(status), testing::HasSubstr("--chat-template"));
  Write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(LoadChatTemplate(dir_, "").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ChatTemplateTest, BadFilesAreErrors) {
  EXPECT_EQ(LoadChatTemplate(dir_, dir_ + "/absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(LoadChatTemplate(dir_, dir_).status().code(), absl::StatusCode::kNotFound);
  Write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_EQ(LoadChatTemplate(dir_, "").status().code(), absl::StatusCode::kInvalidArgument);
  Write("tokenizer_config.json", "[1]");
  EXPECT_EQ(LoadChatTemplate(dir_, "").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      LoadChatTemplate(dir_, Write("big.jinja", std::string((4 << 20) + 1, 'x'))).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(ChatTemplateTest, SpecialTokensAreTextOrObjects) {
  EXPECT_EQ(LoadSpecialTokens(dir_)->eos_token, "");
  Write("tokenizer_config.json",
        R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>"})");
  EXPECT_EQ(LoadSpecialTokens(dir_)->bos_token, "<s>");
  EXPECT_EQ(LoadSpecialTokens(dir_)->eos_token, "</s>");
  Write("tokenizer_config.json", R"({"bos_token": null, "eos_token": 7})");
  EXPECT_EQ(LoadSpecialTokens(dir_).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kt
