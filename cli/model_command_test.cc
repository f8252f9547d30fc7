// SPDX-License-Identifier: Apache-2.0
#include "cli/model_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace kt::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Outcome {
  int exit_code;
  std::string out, err;
};

class ModelCommandTest : public testing::Test {
 protected:
  ModelCommandTest()
      : base_(fs::canonical(testing::TempDir()).string() + "/model_command." +
              std::to_string(getpid())) {
    fs::create_directories(base_ + "/model");
    fs::create_directories(base_ + "/empty");
    std::ofstream(base_ + "/model/config.json") << "{}";
    setenv("XDG_CONFIG_HOME", (base_ + "/config").c_str(), 1);
  }
  ~ModelCommandTest() override { fs::remove_all(base_); }

  Outcome Run(std::vector<std::string> words) {
    CLI::App app;
    Outcome outcome{};
    RegisterModelCommand(app, &outcome.exit_code);
    words.insert(words.begin(), "model");
    std::reverse(words.begin(), words.end());  // CLI11 takes them last first
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    try {
      app.parse(words);
    } catch (const CLI::ParseError& error) {
      outcome.exit_code = 99;
    }
    outcome.out = testing::internal::GetCapturedStdout();
    outcome.err = testing::internal::GetCapturedStderr();
    return outcome;
  }

  const std::string base_;
};

TEST_F(ModelCommandTest, AddListPathRemove) {
  EXPECT_THAT(Run({"list"}).out, HasSubstr("kt model add NAME DIR"));
  Outcome added = Run({"add", "V3.2", base_ + "/empty/../model"});
  EXPECT_EQ(added.exit_code, 0) << added.err;
  EXPECT_THAT(added.out, HasSubstr(base_ + "/model (preset: DeepSeek-V3.2)"));
  EXPECT_EQ(Run({"add", "mine", base_ + "/model"}).exit_code, 0);
  EXPECT_THAT(Run({"list"}).out, AllOf(HasSubstr("V3.2  DeepSeek-V3.2"), HasSubstr("mine  none")));
  EXPECT_EQ(Run({"path", "deepseek-v3.2"}).out, base_ + "/model\n");
  EXPECT_THAT(Run({"remove", "v3.2"}).out, HasSubstr("V3.2: forgotten"));
  EXPECT_TRUE(fs::exists(base_ + "/model/config.json"));
  Outcome gone = Run({"path", "v3.2"});
  EXPECT_EQ(gone.exit_code, 2);
  EXPECT_THAT(gone.err, HasSubstr("kt model path: model v3.2: is no name"));
  fs::remove_all(base_ + "/model");
  EXPECT_THAT(Run({"list"}).out, HasSubstr("is not there"));
}

TEST_F(ModelCommandTest, WhatCannotBeNamedIsSaid) {
  ASSERT_EQ(Run({"add", "mine", base_ + "/model"}).exit_code, 0);
  const std::pair<std::vector<std::string>, std::string> kBad[] = {
      {{"add", "MINE", base_ + "/model"}, "mine is " + base_ + "/model already"},
      {{"add", "a/b", base_ + "/model"}, "a model's name has 1 to 64"},
      {{"add", "", base_ + "/model"}, "a model's name has 1 to 64"},
      {{"add", "x", base_ + "/absent"}, base_ + "/absent: is not a directory"},
      {{"add", "x", base_ + "/model/config.json"}, "is not a directory"},
      {{"add", "x", base_ + "/empty"}, "/empty: has no config.json"},
      {{"remove", "x"}, "model x: is no name"},
  };
  for (const auto& [words, part] : kBad) {
    Outcome refused = Run(words);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_EQ(refused.out, "");
    EXPECT_THAT(refused.err, HasSubstr(part));
  }
  EXPECT_EQ(Run({}).exit_code, 99);
  EXPECT_EQ(Run({"add", "x"}).exit_code, 99);
}

TEST_F(ModelCommandTest, APlaceThatCannotBeWrittenIsAFailure) {
  std::ofstream(base_ + "/config") << "a file";
  Outcome refused = Run({"add", "x", base_ + "/model"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr(base_ + "/config/kt"));
}

TEST_F(ModelCommandTest, PresetsAreThoseOfTheDocs) {
  std::ifstream file(KT_SOURCE_DIR "/docs/presets.md");
  const std::string docs(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(docs, HasSubstr(Run({"presets"}).out));
}

}  // namespace
}  // namespace kt::cli
