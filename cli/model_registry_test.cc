// SPDX-License-Identifier: Apache-2.0
#include "cli/model_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common/base/status.h"

namespace kt::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ModelRegistryTest : public testing::Test {
 protected:
  ModelRegistryTest() : base_(testing::TempDir() + "/registry_test." + std::to_string(getpid())) {
    fs::create_directory(base_);
    setenv("XDG_CONFIG_HOME", base_.c_str(), 1);
  }
  ~ModelRegistryTest() override { fs::remove_all(base_); }

  std::string Write(const std::string& text) {
    fs::create_directories(base_ + "/kt");
    std::ofstream(file_) << text;
    return file_;
  }
  void WriteModels(const RegisteredModels& models) {
    ASSERT_TRUE(UpdateRegistry(file_, [&](RegisteredModels* out) {
                  *out = models;
                  return absl::OkStatus();
                }).ok());
  }

  const std::string base_;
  const std::string file_ = base_ + "/kt/models.json";
};

TEST_F(ModelRegistryTest, LiesWhereTheEnvironmentSays) {
  EXPECT_EQ(RegistryPath(), file_);
  unsetenv("XDG_CONFIG_HOME");
  setenv("HOME", "/home/u", 1);
  EXPECT_EQ(RegistryPath(), "/home/u/.config/kt/models.json");
  setenv("XDG_CONFIG_HOME", "relative", 1);  // as good as unset, says the XDG specification
  EXPECT_EQ(RegistryPath(), "/home/u/.config/kt/models.json");
  unsetenv("HOME");
  EXPECT_EQ(RegistryPath(), "");
  EXPECT_TRUE(ReadRegistry("")->empty());
  auto status = UpdateRegistry("", [](RegisteredModels*) { return absl::OkStatus(); });
  EXPECT_THAT(Message(status), HasSubstr("HOME"));
}

TEST_F(ModelRegistryTest, KeepsWhatWasWrittenAndLeavesNothingElse) {
  EXPECT_TRUE(ReadRegistry(file_)->empty());
  WriteModels({{"V3.2", "/models/a \"b\" é"}, {"mine", "/m"}});
  auto models = ReadRegistry(file_);
  ASSERT_TRUE(models.ok()) << models.status();
  ASSERT_EQ(models->size(), 2u);
  EXPECT_EQ((*models)[0].name, "V3.2");
  EXPECT_EQ((*models)[0].path, "/models/a \"b\" é");
  auto refused = UpdateRegistry(file_, [](RegisteredModels* m) {
    m->clear();
    return InvalidArgument("no");
  });
  EXPECT_EQ(Message(refused), "no");
  EXPECT_EQ(ReadRegistry(file_)->size(), 2u);
  EXPECT_EQ(std::distance(fs::directory_iterator(base_ + "/kt"), fs::directory_iterator()), 1);
}

TEST_F(ModelRegistryTest, UpdatesOfSeveralProcessesAreAllKept) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        EXPECT_TRUE(UpdateRegistry(file_, [&](RegisteredModels* models) {
                      models->push_back({fmt::format("m{}-{}", t, i), "/m"});
                      return absl::OkStatus();
                    }).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ReadRegistry(file_)->size(), 40u);
}

TEST_F(ModelRegistryTest, HostileFilesAreRefusedWithTheFault) {
  const std::string many = [] {
    std::string text;
    for (int i = 0; i < 1025; ++i)
      text += fmt::format("{}{{\"name\": \"m{}\", \"path\": \"/\"}}", i > 0 ? "," : "", i);
    return "{\"models\": [" + text + "]}";
  }();
  const std::pair<std::string, const char*> kBad[] = {
      {"", "JSON"},
      {"{", "JSON"},
      {"\xFF", "JSON"},
      {"[]", "must be an object"},
      {"{}", "\"models\""},
      {R"({"models": {}})", "\"models\""},
      {many, "at most 1024"},
      {R"({"models": [5]})", "models[0].name"},
      {R"({"models": [{"name": 5, "path": "/"}]})", "models[0]: name must be"},
      {R"({"models": [{"name": "../x", "path": "/"}]})", "models[0].name"},
      {R"({"models": [{"name": "a\u0000", "path": "/"}]})", "models[0].name"},
      {R"({"models": [{"name": "a\u001b[2J", "path": "/"}]})", "models[0].name"},
      {R"({"models": [{"name": "a"}]})", "models[0].path"},
      {R"({"models": [{"name": "a", "path": "relative"}]})", "\"relative\""},
      {R"({"models": [{"name": "a", "path": "/x\u0000y"}]})", "models[0].path"},
      {R"({"models": [{"name": "a", "path": "/"}, {"name": "A", "path": "/"}]})",
       "models[1].name: A is there twice"},
      {std::string((1 << 20) + 1, ' '), "1048576"},
      {std::string(100, '['), "nested"},
  };
  for (const auto& [text, part] : kBad) {
    auto status = ReadRegistry(Write(text)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 80);
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr(file_), HasSubstr(part), HasSubstr("mend or remove")));
    // Nor is it written over.
    EXPECT_FALSE(UpdateRegistry(file_, [](RegisteredModels*) { return absl::OkStatus(); }).ok());
    EXPECT_EQ(fs::file_size(file_), text.size());
  }
  fs::remove(file_);
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);  // is not waited for
  EXPECT_THAT(Message(ReadRegistry(file_).status()), HasSubstr("is not a file"));
}

TEST_F(ModelRegistryTest, NamesAreFoundInAnyCaseAndByTheirPreset) {
  const RegisteredModels models = {{"V3.2", "/a"}, {"kimi-k2-thinking", "/b"}, {"Mine", "/c"}};
  for (const char* name : {"v3.2", "V3.2", "deepseek-V3.2"})
    EXPECT_EQ(FindModel(models, name)->path, "/a") << name;
  for (const char* name : {"KIMI", "k2", "Kimi-K2-Thinking"})
    EXPECT_EQ(FindModel(models, name)->path, "/b") << name;
  EXPECT_EQ(FindModel(models, "mine")->path, "/c");
  EXPECT_TRUE(absl::IsNotFound(FindModel(models, "r1").status()));
  const RegisteredModels two = {{"r1", "/a"}, {"DeepSeek-R1", "/b"}};
  EXPECT_EQ(FindModel(two, "R1")->path, "/a");
  EXPECT_THAT(Message(FindModel(two, "deepseek-r1-0528").status()),
              AllOf(HasSubstr("r1 and DeepSeek-R1 are both DeepSeek-R1-0528")));
}

TEST_F(ModelRegistryTest, DirectoriesComeFirstThenNamesThenPaths) {
  WriteModels({{"m2", "/models/m2"}, {"dir", "/elsewhere"}});
  auto m2 = ResolveModel("MiniMax-M2");
  ASSERT_TRUE(m2.ok()) << m2.status();
  EXPECT_EQ(m2->path, "/models/m2");
  EXPECT_EQ(m2->name, "m2");
  EXPECT_EQ(m2->preset, FindPreset("minimax-m2"));
  EXPECT_EQ(ResolveModel("dir")->preset, nullptr);
  EXPECT_EQ(ResolveModel("dir")->path, "/elsewhere");

  fs::create_directory(base_ + "/dir");
  const fs::path before = fs::current_path();
  fs::current_path(base_);
  EXPECT_EQ(ResolveModel("dir")->path, "dir");
  EXPECT_EQ(ResolveModel("dir")->name, "");
  fs::current_path(before);

  for (const char* path : {"/models/m2", "./m2", "unknown", ""}) {
    EXPECT_EQ(ResolveModel(path)->path, path);
    EXPECT_EQ(ResolveModel(path)->preset, nullptr);
  }
  auto missing = ResolveModel("v3.2").status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(Message(missing),
              AllOf(HasSubstr("DeepSeek-V3.2"), HasSubstr("`kt model add v3.2 DIR`")));
  Write("{");
  EXPECT_THAT(Message(ResolveModel("m2").status()), HasSubstr(file_));
  EXPECT_TRUE(ResolveModel("/models/m2").ok());
}

}  // namespace
}  // namespace kt::cli
