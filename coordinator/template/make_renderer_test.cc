// SPDX-License-Identifier: Apache-2.0
#include "coordinator/template/make_renderer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/base/json.h"

namespace kt {
namespace {

const Json& Chat() {
  static const Json& chat =
      *new Json{{"messages", Json::array({Json{{"role", "user"}, {"content", "Hi"}}})}};
  return chat;
}

class MakeRendererTest : public testing::Test {
 protected:
  MakeRendererTest()
      : dir_(testing::TempDir() + "/make_renderer_test." + std::to_string(getpid())) {
    std::filesystem::create_directory(dir_);
  }
  ~MakeRendererTest() override { std::filesystem::remove_all(dir_); }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ + "/" + name) << text;
    return dir_ + "/" + name;
  }
  std::string Render(const std::string& template_path, const std::string& model_type) {
    auto renderer = MakePromptRenderer(dir_, template_path, model_type);
    if (!renderer.ok()) return std::string(renderer.status().ToString());
    return (*renderer)->Render(Chat()).value_or("error");
  }

  const std::string dir_;
};

TEST_F(MakeRendererTest, PublishedRulesStandInForAMissingTemplate) {
  const char* encoded = "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>";
  EXPECT_EQ(Render("", "deepseek_v32"), encoded);
  EXPECT_EQ(MakePromptRenderer(dir_, "", "deepseek_v3").status().code(),
            absl::StatusCode::kFailedPrecondition);
  Write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_EQ(Render("", "deepseek_v32"), encoded);
}

TEST_F(MakeRendererTest, TemplatesOutrankThem) {
  const std::string mine = Write("mine.jinja", "mine {{ eos_token }}");
  Write("tokenizer_config.json", R"({"eos_token": "</s>", "chat_template": "the model's"})");
  EXPECT_EQ(Render("", "deepseek_v32"), "the model's");
  EXPECT_EQ(Render(mine, "deepseek_v32"), "mine </s>");
  EXPECT_EQ(MakePromptRenderer(dir_, dir_ + "/absent", "deepseek_v32").status().code(),
            absl::StatusCode::kNotFound);
  Write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_EQ(MakePromptRenderer(dir_, "", "deepseek_v32").status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kt
