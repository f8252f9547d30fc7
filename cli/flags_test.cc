// SPDX-License-Identifier: Apache-2.0
#include "cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "cli/environment.h"
#include "common/base/status.h"

namespace kt::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

absl::StatusOr<RunOptions> Parse(std::vector<std::string> args) {
  CLI::App app;
  RunFlags flags(&app);
  std::reverse(args.begin(), args.end());  // CLI11 takes them last first
  try {
    app.parse(args);
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return flags.Read();
}

std::vector<std::string> Words(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string ParseError(const std::string& line) { return Message(Parse(Words(line)).status()); }

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string WriteFile(const std::string& text) {
  std::string path = ::testing::TempDir() + "flags_test.conf";
  std::ofstream(path) << text;
  return path;
}

TEST(FlagsTest, DefaultsAndPositionalModel) {
  absl::StatusOr<RunOptions> options = Parse({"/models/m"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->model, "/models/m");
  EXPECT_EQ(options->host, "127.0.0.1");
  EXPECT_EQ(options->port, 30000);
  EXPECT_THAT(options->notes, IsEmpty());
  EXPECT_EQ(Parse({"--model", "/models/m"})->model, "/models/m");
  EXPECT_EQ(Parse({"--model-path=/models/m"})->model, "/models/m");
  EXPECT_THAT(ParseError("--port 1"), HasSubstr("--model"));
}

TEST(FlagsTest, ValuesOfEveryKind) {
  absl::StatusOr<RunOptions> options =
      Parse(Words("m --port 8080 -H 0.0.0.0 --kt-method bf16 --kt-gpu-experts-ratio 0.5 "
                  "--enable-mixed-chunk --chunked-prefill-size -1 --kt-numa-nodes 0 1 "
                  "--kt-threadpool-count 2 --activation-dtype float32 --log-level debug "
                  "--random-seed 9007199254740991"));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->port, 8080);
  EXPECT_EQ(options->host, "0.0.0.0");
  EXPECT_EQ(options->kt_method, "BF16");
  EXPECT_EQ(options->gpu_experts_ratio, 0.5);
  EXPECT_TRUE(options->enable_mixed_chunk);
  EXPECT_EQ(options->chunked_prefill_size, -1);
  EXPECT_THAT(options->numa_nodes, ElementsAre(0, 1));
  EXPECT_EQ(options->activation_dtype, "float32");
  EXPECT_EQ(options->random_seed, 9007199254740991);
}

TEST(FlagsTest, WrongValuesNameFlagValueAndRange) {
  EXPECT_EQ(ParseError("m --port 65536"), "--port 65536: must be a whole number from 0 to 65535");
  EXPECT_EQ(ParseError("m --port abc"), "--port abc: must be a whole number from 0 to 65535");
  EXPECT_EQ(ParseError("m --port 12x"), "--port 12x: must be a whole number from 0 to 65535");
  EXPECT_EQ(ParseError("m --kt-cpuinfer 0"),
            "--kt-cpuinfer 0: must be a whole number from 1 to 65536");
  EXPECT_EQ(ParseError("m --kt-gpu-experts-ratio nan"),
            "--kt-gpu-experts-ratio nan: must be a number from 0 to 1");
  EXPECT_EQ(ParseError("m --log-level loud"),
            "--log-level loud: must be one of trace, debug, info, warning, error");
  EXPECT_EQ(
      ParseError("m --max-total-tokens 99999999999999999999"),
      "--max-total-tokens 99999999999999999999: must be a whole number from 16 to 2147483647, or "
      "auto");
  EXPECT_THAT(ParseError("m --no-such-flag 1"), HasSubstr("--no-such-flag"));
  EXPECT_THAT(ParseError("m --port"), HasSubstr("--port"));
}

TEST(FlagsTest, TheLastOfRepeatedFlagsHolds) {
  EXPECT_EQ(Parse(Words("m --port 1 --port 2"))->port, 2);
}

TEST(FlagsTest, AllThatIsNotBuiltYetIsNamedInOneSentence) {
  absl::StatusOr<RunOptions> options =
      Parse(Words("m --tp 8 --kt-method FP8 --enable-shared-experts-fusion "
                  "--kt-max-deferred-experts-per-token 2"));
  EXPECT_EQ(options.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(
      Message(options.status()),
      "not built yet: --kt-max-deferred-experts-per-token 2 (expert deferral; 0 is off), "
      "--enable-shared-experts-fusion (fusion of shared with routed experts); leave them out");
  EXPECT_TRUE(Parse(Words("m --tp 1 --kt-gpu-prefill-token-threshold 0 "
                          "--kt-max-deferred-experts-per-token 0 --schedule-policy fcfs"))
                  .ok());
}

TEST(FlagsTest, FlagsWithoutEffectGiveTheReason) {
  absl::StatusOr<RunOptions> options =
      Parse(Words("m --trust-remote-code --attention-backend flashinfer --cuda-graph-bs 1 2 4"));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(options->notes,
              ElementsAre("--trust-remote-code has no effect here: no code of a model is ever run",
                          HasSubstr("--attention-backend has no effect here"),
                          HasSubstr("--cuda-graph-bs")));
  EXPECT_THAT(Parse(Words("m --trust-remote-code=false"))->notes, IsEmpty());
}

TEST(FlagsTest, ConfigFileInEachFormAndTheCommandLineWins) {
  for (
      const std::string& text :
      {std::string(
           R"({"port": 1234, "host": "0.0.0.0", "enable-mixed-chunk": true, "kt-numa-nodes": [0, 1]})"),
       std::string(
           "port = 1234\nhost = \"0.0.0.0\"\nenable-mixed-chunk = true\nkt-numa-nodes = [0, 1]\n"),
       std::string(
           "[run]\nport=1234\nhost=0.0.0.0\nenable-mixed-chunk=true\nkt-numa-nodes=0 1\n")}) {
    absl::StatusOr<RunOptions> options = Parse({"m", "--config", WriteFile(text), "--host", "::1"});
    ASSERT_TRUE(options.ok()) << options.status() << "\n" << text;
    EXPECT_EQ(options->port, 1234);
    EXPECT_EQ(options->host, "::1");
    EXPECT_TRUE(options->enable_mixed_chunk);
    EXPECT_THAT(options->numa_nodes, ElementsAre(0, 1)) << text;
  }
  EXPECT_EQ(Parse({"--config", WriteFile(R"({"model": "from-file"})")})->model, "from-file");
}

TEST(FlagsTest, BadConfigFilesAreNamed) {
  auto error = [](const std::string& text) {
    return Message(Parse({"m", "--config", WriteFile(text)}).status());
  };
  EXPECT_THAT(error(R"({"prot": 1})"), HasSubstr("there is no flag --prot"));
  EXPECT_THAT(error(R"({"port": {}})"), HasSubstr("port"));
  EXPECT_THAT(error(R"({"port": )"), HasSubstr("flags_test.conf"));
  EXPECT_THAT(error("[server]\nport = 1\n"), HasSubstr("[server]"));
  EXPECT_THAT(error("port = 70000\n"), HasSubstr("--port 70000"));
  EXPECT_THAT(Message(Parse({"m", "--config", "/nonexistent"}).status()),
              HasSubstr("/nonexistent"));
}

TEST(FlagsTest, NamesAreUniqueAndEveryRowSaysSomething) {
  std::set<std::string> names;
  for (const Flag& flag : FlagTable()) {
    std::istringstream stream(flag.names);
    for (std::string name; std::getline(stream, name, ',');)
      EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_FALSE(flag.text.empty()) << flag.names;
    EXPECT_EQ(flag.use == FlagUse::kWorks && std::holds_alternative<std::monostate>(flag.target),
              false)
        << flag.names;
  }
}

TEST(FlagsTest, DocsHaveTheTable) {
  std::string docs = ReadText(KT_SOURCE_DIR "/docs/flags.md");
  constexpr char kBegin[] = "<!-- made by: kt run --print-flags-table -->\n";
  size_t begin = docs.find(kBegin);
  ASSERT_NE(begin, std::string::npos);
  EXPECT_EQ(docs.substr(begin + sizeof(kBegin) - 1), FlagsMarkdown() + EnvironmentMarkdown())
      << "replace what follows the mark in docs/flags.md with the output of kt run "
         "--print-flags-table";
}

class ReferenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    reference_ = ReadText(KT_SOURCE_DIR "/../shared/reference/cli_and_flags.md");
    if (reference_.empty())
      GTEST_SKIP() << "the reference of flag names is not beside the source tree";
    std::istringstream stream;
    for (const Flag& flag : FlagTable()) {
      stream = std::istringstream(flag.names);
      for (std::string name; std::getline(stream, name, ',');) names_.insert(name);
    }
  }
  std::string Section(const std::string& from, const std::string& to) const {
    size_t begin = reference_.find(from), end = reference_.find(to);
    EXPECT_LT(begin, end);
    return reference_.substr(begin, end - begin);
  }
  std::string reference_;
  std::set<std::string> names_;
};

TEST_F(ReferenceTest, EveryFlagNameIsInTheTable) {
  std::string text = Section("### 1.1", "### 1.2") + Section("### 2.1", "### 2.3");
  std::regex name("--[a-z][a-z0-9-]+[a-z0-9]");
  for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it) {
    std::string found = it->str();
    // "--disable-shared-experts-fusion/--enable-…" is the one name that the reference cuts short.
    if (found == "--enable") continue;
    EXPECT_TRUE(names_.count(found)) << found;
  }
}

TEST_F(ReferenceTest, EveryEnvironmentVariableIsInTheTable) {
  std::string text = Section("## 3. Environment", "## 4. HTTP");
  std::set<std::string> known;
  for (const EnvironmentVariable& variable : EnvironmentTable()) known.insert(variable.name);
  std::regex name("`([A-Z][A-Z0-9_]+)");
  for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it)
    EXPECT_TRUE(known.count((*it)[1])) << (*it)[1];
}

// The launch lines of the tutorials, word for word.
TEST(TutorialsTest, LaunchLinesAreUnderstood) {
  std::string text = ReadText(KT_SOURCE_DIR "/../shared/seeds/000_398458c6a017c6aa.txt");
  if (text.empty()) GTEST_SKIP() << "the tutorials are not beside the source tree";
  text = std::regex_replace(text, std::regex("\\\\\n"), " ");
  std::regex launch("python -m sglang.launch_server ([^\n]*)");
  int lines = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), launch), end; it != end; ++it, ++lines) {
    absl::StatusOr<RunOptions> options = Parse(Words((*it)[1]));
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->tensor_parallel_size, 8);
    EXPECT_TRUE(options->dynamic_expert_update);
  }
  EXPECT_EQ(lines, 3);
}

// The same line on a machine without GPUs, with what is not built yet left out.
TEST(TutorialsTest, Bf16LineWithoutRefusedFlagsStarts) {
  absl::StatusOr<RunOptions> options =
      Parse(Words("--host 0.0.0.0 --port 30000 --model /path/to/GLM-4.7/ --kt-weight-path "
                  "/path/to/GLM-4.7/ --kt-cpuinfer 100 --kt-threadpool-count 2 "
                  "--kt-num-gpu-experts 15 --kt-method BF16 --kt-enable-dynamic-expert-update "
                  "--attention-backend flashinfer --mem-fraction-static 0.80 "
                  "--chunked-prefill-size 16384 --max-running-requests 2 --max-total-tokens 32768 "
                  "--trust-remote-code --served-model-name GLM-4.7 "
                  "--enable-mixed-chunk --tensor-parallel-size 1 --enable-p2p-check "
                  "--disable-shared-experts-fusion --watchdog-timeout 3000"));
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->notes.size(), 4u);
  EXPECT_TRUE(options->dynamic_expert_update);
  EXPECT_EQ(options->watchdog_timeout_s, 3000);
  EXPECT_EQ(options->mem_fraction_static, 0.8);
}

TEST(EnvironmentTest, IgnoredVariablesAreSaid) {
  setenv("KT_LANG", "zh", 1);
  EXPECT_THAT(EnvironmentNotes(), ::testing::Contains(HasSubstr("KT_LANG has no effect here")));
  unsetenv("KT_LANG");
}

}  // namespace
}  // namespace kt::cli
