// SPDX-License-Identifier: Apache-2.0
#include "cli/presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/ascii.h"
#include "cli/flags.h"
#include "cli/model_registry.h"
#include "common/base/status.h"

namespace kt::cli {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class PresetsTest : public testing::Test {
 protected:
  PresetsTest() : base_(testing::TempDir() + "/presets_test." + std::to_string(getpid())) {
    setenv("XDG_CONFIG_HOME", base_.c_str(), 1);
  }
  ~PresetsTest() override { std::filesystem::remove_all(base_); }

  void Register(const std::string& name) {
    ASSERT_TRUE(UpdateRegistry(RegistryPath(), [&](RegisteredModels* models) {
                  models->push_back({name, "/models/" + name});
                  return absl::OkStatus();
                }).ok());
  }
  absl::StatusOr<RunOptions> Parse(std::vector<std::string> words) {
    CLI::App app;
    RunFlags flags(&app);
    std::reverse(words.begin(), words.end());  // CLI11 takes them last first
    app.parse(words);
    return flags.Read();
  }

  const std::string base_;
};

TEST_F(PresetsTest, NamesMeanOneModelEach) {
  std::set<std::string> seen;
  for (const Preset& preset : PresetTable()) {
    std::vector<std::string> names = preset.aliases;
    names.push_back(preset.name);
    for (const std::string& name : names) {
      EXPECT_TRUE(CheckModelName(name).ok()) << name;
      EXPECT_TRUE(seen.insert(absl::AsciiStrToLower(name)).second) << name;
      EXPECT_EQ(FindPreset(absl::AsciiStrToUpper(name)), &preset) << name;
    }
  }
  EXPECT_EQ(FindPreset("none"), nullptr);
}

TEST_F(PresetsTest, EveryFlagIsTakenOrLeftOutWithItsReason) {
  for (const Preset& preset : PresetTable()) {
    Register(preset.name);
    absl::StatusOr<RunOptions> options = Parse({preset.name});
    ASSERT_TRUE(options.ok()) << preset.name << options.status();
    EXPECT_EQ(options->notes.size(), preset.flags.size()) << preset.name;
    EXPECT_THAT(options->notes, Each(HasSubstr("preset " + preset.name + ": ")));
  }
}

TEST_F(PresetsTest, ValuesStandInForWhatTheUserDoesNotGive) {
  Register("V3.2");
  absl::StatusOr<RunOptions> options =
      Parse({"deepseek-v3.2", "--max-running-requests", "3", "--kt-enable-dynamic-expert-update"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->model, "/models/V3.2");
  EXPECT_EQ(options->served_model_name, "V3.2");
  EXPECT_EQ(options->max_running_requests, 3);
  EXPECT_EQ(options->chunked_prefill_size, 32768);
  EXPECT_EQ(options->max_total_tokens, 100000);
  EXPECT_TRUE(options->enable_mixed_chunk);
  EXPECT_THAT(options->notes, Contains("preset DeepSeek-V3.2: --chunked-prefill-size 32768"));
  EXPECT_THAT(options->notes, Contains("preset DeepSeek-V3.2: --enable-mixed-chunk"));
  EXPECT_THAT(options->notes, Not(Contains(HasSubstr("--max-running-requests"))));
  EXPECT_THAT(options->notes,
              Contains(HasSubstr(
                  "preset DeepSeek-V3.2: --attention-backend flashinfer has no effect here")));
  EXPECT_EQ(Parse({"v3.2", "--served-model-name", "x"})->served_model_name, "x");
  EXPECT_FALSE(Parse({"v3.2", "--enable-mixed-chunk=false"})->enable_mixed_chunk);
}

TEST_F(PresetsTest, TheConfigFileWinsOverThePresetAndMayNameTheModel) {
  Register("V3.2");
  const std::string path = base_ + "/flags.json";
  std::ofstream(path) << R"({"model": "V3.2", "chunked-prefill-size": 64})";
  absl::StatusOr<RunOptions> options = Parse({"--config", path});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->model, "/models/V3.2");
  EXPECT_EQ(options->chunked_prefill_size, 64);
  EXPECT_EQ(options->max_running_requests, 16);
}

TEST_F(PresetsTest, WhatIsNotBuiltIsLeftOutButRefusedWhenAskedFor) {
  Register("GLM-4.7");
  const auto table = FlagTable();
  for (const Preset& preset : PresetTable()) {
    for (const PresetFlag& wanted : preset.flags) {
      auto flag = std::find_if(table.begin(), table.end(), [&](const Flag& f) {
        return ("," + f.names + ",").find(",--" + wanted.name + ",") != std::string::npos;
      });
      ASSERT_NE(flag, table.end()) << wanted.name;
      if (flag->use != FlagUse::kRefused || preset.name != "GLM-4.7") continue;
      EXPECT_THAT(Parse({"glm-4.7"})->notes,
                  Contains(HasSubstr("left out, not built yet: --" + wanted.name)));
      EXPECT_TRUE(
          absl::IsUnimplemented(Parse({"glm-4.7", "--" + wanted.name, wanted.value}).status()));
    }
  }
}

TEST_F(PresetsTest, LayerwisePrefillOnTheHostDeviceIsForTheUserToAskFor) {
  Register("GLM-4.7");
  absl::StatusOr<RunOptions> options = Parse({"glm-4.7"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->gpu_prefill_token_threshold, "0");
  EXPECT_FALSE(options->dynamic_expert_update);
  EXPECT_THAT(options->notes,
              Contains(HasSubstr("--kt-gpu-prefill-token-threshold 1024: the host")));
  EXPECT_EQ(
      Parse({"glm-4.7", "--kt-gpu-prefill-token-threshold", "auto"})->gpu_prefill_token_threshold,
      "auto");
}

TEST_F(PresetsTest, ADirectoryHasNoPreset) {
  Register("V3.2");
  absl::StatusOr<RunOptions> options = Parse({"/models/V3.2"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->chunked_prefill_size, RunOptions().chunked_prefill_size);
  EXPECT_EQ(options->served_model_name, "");
  EXPECT_THAT(options->notes, IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(Parse({"r1"}).status()));
}

}  // namespace
}  // namespace kt::cli
