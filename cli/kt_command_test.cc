// SPDX-License-Identifier: Apache-2.0
// The real `kt` and `kt-node`, with shell scripts in the place of the other programs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "common/base/json.h"
#include "common/base/status.h"

namespace kt::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::seconds kPatience{20};  // an upper bound for failures, not a wait

// What a qwen3_moe directory needs for its configuration to be understood.
std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class KtCommandTest : public ::testing::Test {
 protected:
  KtCommandTest() {
    char folder[] = "/tmp/kt-test-XXXXXX";
    base_ = mkdtemp(folder);
    for (const char* part : {"/bin", "/runtime"}) fs::create_directory(base_ + part);
    for (const char* program : {"kt", "kt-node"})
      fs::copy(std::string(KT_BINARY_DIR "/bin/") + program, base_ + "/bin/" + program);
    Script("kt-coordinator",
           "trap 'exit 0' TERM; test -r $2 && echo READY >&$KT_READY_FD; while :; do sleep 0.05; "
           "done");
    for (const char* worker : {"kt-gpu-worker", "kt-cpu-expert-worker"})
      Script(worker, "exec sleep 1000");
  }
  ~KtCommandTest() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    fs::remove_all(base_);
  }

  void Script(const std::string& name, const std::string& body) {
    std::string path = base_ + "/bin/" + name;
    std::ofstream(path) << "#!/bin/bash\n" << body << "\n";
    fs::permissions(path, fs::perms::owner_all);
  }

  void Start(std::vector<std::string> args) {
    args.insert(args.begin(), base_ + "/bin/kt");
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    std::ofstream(base_ + "/out").flush();
    std::ofstream(base_ + "/err").flush();
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("XDG_RUNTIME_DIR", (base_ + "/runtime").c_str(), 1);
    dup2(open((base_ + "/out").c_str(), O_WRONLY | O_APPEND), STDOUT_FILENO);
    dup2(open((base_ + "/err").c_str(), O_WRONLY | O_APPEND), STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(99);
  }
  int Wait() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  int Run(std::vector<std::string> args) {
    Start(std::move(args));
    return Wait();
  }
  bool Eventually(const std::function<bool()>& condition) {
    auto end = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      poll(nullptr, 0, 10);
    }
    return true;
  }
  std::string Out() const { return ReadText(base_ + "/out"); }
  std::string Err() const { return ReadText(base_ + "/err"); }
  static std::string model() { return KT_SOURCE_DIR "/tests/data/models/qwen3_moe"; }
  bool RuntimeIsEmpty() const { return fs::is_empty(base_ + "/runtime"); }

  std::string base_;
  pid_t pid_ = 0;
};

TEST_F(KtCommandTest, ExitCodesAndSentences) {
  EXPECT_EQ(Run({"version", "-v"}), 0);
  EXPECT_THAT(Out(), AllOf(HasSubstr("kt "), HasSubstr("protobuf")));
  EXPECT_EQ(Run({"run", "--help"}), 0);
  EXPECT_THAT(Out(), HasSubstr("--kt-cpuinfer"));
  EXPECT_EQ(Run({}), 2);
  EXPECT_EQ(Run({"run", model(), "--no-such-flag"}), 2);
  EXPECT_THAT(Err(), HasSubstr("--no-such-flag"));
  EXPECT_EQ(Run({"run", model(), "--port", "x"}), 2);
  EXPECT_THAT(Err(), HasSubstr("kt run: --port x: must be a whole number from 0 to 65535\n"));
  EXPECT_EQ(Run({"run", model(), "--tp", "3"}), 2);
  EXPECT_EQ(Run({"run", model(), "--chunked-prefill-size", "0"}), 2);
  EXPECT_THAT(Err(), HasSubstr("--chunked-prefill-size 0: must be -1 or at least 1"));
  EXPECT_EQ(Run({"run", "/nonexistent"}), 3);
  EXPECT_THAT(Err(), HasSubstr("/nonexistent"));
  EXPECT_EQ(Run({"run", base_ + "/bin"}), 3);
  EXPECT_THAT(Err(), HasSubstr("config.json"));
  EXPECT_EQ(Run({"run", base_ + "/bin/kt"}), 3);
  EXPECT_THAT(Err(), HasSubstr("is not a directory"));
  EXPECT_TRUE(RuntimeIsEmpty());
}

TEST_F(KtCommandTest, PrintConfigIsJsonWithoutTheKey) {
  ASSERT_EQ(
      Run({"run", model(), "--print-config", "--api-key", "secret", "--kt-num-gpu-experts", "4"}),
      0)
      << Err();
  absl::StatusOr<Json> config = ParseJson(Out());
  ASSERT_TRUE(config.ok()) << config.status() << Out();
  for (const Json& layer : (*config)["experts"]["residents"])
    EXPECT_EQ(layer["experts"], Json({0, 1, 2, 3}));
  EXPECT_EQ((*config)["model"]["path"], fs::canonical(model()).string());
  EXPECT_EQ((*config)["server"]["api_key"], "***");
  EXPECT_TRUE(RuntimeIsEmpty());
}

TEST_F(KtCommandTest, BenchKernelsHoldsEveryRowAgainstTheMachine) {
  ASSERT_EQ(Run({"bench", "kernels", "--shape", "64x32x4x2", "--format", "bf16,mxfp4", "--tokens",
                 "1,3", "--threads", "1", "--seconds", "0.01", "--json"}),
            0)
      << Err();
  const Json rows = ParseJson(Out()).value();
  ASSERT_EQ(rows.size(), 4u);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Json& row = rows[i];
    EXPECT_EQ(row["format"], i < 2 ? "bf16" : "mxfp4");
    EXPECT_EQ(row["shape"], "64x32x4x2");
    EXPECT_EQ(row["experts"], 4);
    EXPECT_EQ(row["tokens"], i % 2 == 0 ? 1 : 3);
    EXPECT_EQ(row["threads"], 1);
    EXPECT_GE(row["calls"], 2);
    EXPECT_GE(row["layers"], 2);
    EXPECT_GE(row["active_experts"], 2);
    EXPECT_LE(row["active_experts"], i % 2 == 0 ? 2 : 4);
    for (const char* field :
         {"ms", "ms_median", "gbytes_per_s", "gflops", "limit", "share_of_limit",
          "share_of_limit_median", "machine_gbytes_per_s", "machine_gflops"}) {
      ASSERT_TRUE(row.contains(field)) << field;
      EXPECT_GT(row[field].get<double>(), 0) << field;
    }
    EXPECT_NEAR(row["share_of_limit"].get<double>(),
                row["limit"].get<double>() / row["ms"].get<double>(), 1e-6);
    EXPECT_TRUE(row["limited_by"] == "memory" || row["limited_by"] == "compute");
    // Operations of a call: 6 x tokens x top-k x hidden x intermediate.
    EXPECT_NEAR(row["gflops"].get<double>() * row["ms"].get<double>() * 1e6,
                6.0 * row["tokens"].get<int>() * 2 * 64 * 32, 1);
  }
  EXPECT_EQ(Run({"bench", "kernels", "--format", "fp7"}), 2);
  EXPECT_THAT(Err(), HasSubstr("kt bench kernels: --format fp7: use one of bf16, fp8-block"));
  EXPECT_EQ(Run({"bench", "kernels", "--shape", "64x32x4"}), 2);
  EXPECT_THAT(Err(), HasSubstr("kt bench kernels: --shape 64x32x4: use qwen3-30b|deepseek-v3|"));
  EXPECT_EQ(Run({"bench", "kernels", "--tokens", "0"}), 2);
  EXPECT_EQ(Run({"bench"}), 2);
}

TEST_F(KtCommandTest, DryRunNamesTheProcesses) {
  ASSERT_EQ(Run({"run", model(), "--dry-run", "--kt-threadpool-count", "2"}), 0) << Err();
  EXPECT_THAT(Out(),
              HasSubstr("kt-cpu-expert-worker-1: " + base_ + "/bin/kt-cpu-expert-worker --config"));
  EXPECT_TRUE(RuntimeIsEmpty());
}

TEST_F(KtCommandTest, RunServesUntilItIsStoppedAndLeavesNothing) {
  Start({"run", "--model", model(), "--port", "0", "--trust-remote-code", "--host", "0.0.0.0",
         "--served-model-name", "tiny"});
  ASSERT_TRUE(Eventually([&] { return Err().find("ready: http://0.0.0.0:") != std::string::npos; }))
      << Err();
  EXPECT_THAT(Err(), AllOf(HasSubstr(fmt::format("model=tiny pid={} in ", pid_)),
                           HasSubstr("--trust-remote-code has no effect here"),
                           HasSubstr("--host 0.0.0.0: others can reach the server")));
  EXPECT_EQ(Out(), "");

  pid_t server = std::exchange(pid_, 0);
  std::string runtime_dir = fs::directory_iterator(base_ + "/runtime")->path().string();
  Start({"status", "--json", "--runtime-dir", runtime_dir});
  EXPECT_EQ(Wait(), 0) << Err();
  Json status = ParseJson(Out()).value();
  ASSERT_EQ(status.size(), 1u);
  EXPECT_EQ(status[0]["node"]["pid"], server);
  EXPECT_EQ(status[0]["node"]["processes"][0]["name"], "kt-coordinator");
  EXPECT_TRUE(status[0]["health"].is_string()) << "the script answers no HTTP";
  Start({"status", "--runtime-dir", runtime_dir});
  EXPECT_EQ(Wait(), 0);
  EXPECT_THAT(Out(), AllOf(HasSubstr("serving  http://0.0.0.0:"), HasSubstr("kt-gpu-worker-0")));

  pid_ = server;
  kill(pid_, SIGTERM);
  EXPECT_EQ(Wait(), 0);
  EXPECT_TRUE(RuntimeIsEmpty());
  EXPECT_EQ(Run({"status", "--runtime-dir", runtime_dir}), 1);
}

TEST_F(KtCommandTest, WorkerThatCannotLoadEndsTheRunWithItsSentence) {
  Script("kt-coordinator", "exec sleep 1000");
  Script("kt-gpu-worker", "echo -n 'model.safetensors: is truncated' >&$KT_ERROR_FD; exit 3");
  EXPECT_EQ(Run({"run", model(), "--port", "0"}), 3);
  EXPECT_THAT(Err(), ::testing::EndsWith("model.safetensors: is truncated\n"));
  EXPECT_TRUE(RuntimeIsEmpty());
}

TEST_F(KtCommandTest, MissingNodeProgramLeavesNoDirectory) {
  fs::remove(base_ + "/bin/kt-node");
  EXPECT_EQ(Run({"run", model(), "--port", "0"}), 1);
  EXPECT_THAT(Err(), HasSubstr("/bin/kt-node: No such file or directory"));
  EXPECT_TRUE(RuntimeIsEmpty());
}

}  // namespace
}  // namespace kt::cli
