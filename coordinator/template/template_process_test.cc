// SPDX-License-Identifier: Apache-2.0
#include "coordinator/template/template_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "coordinator/template/messages.h"

namespace kt {
namespace {

using ::testing::HasSubstr;

TemplateOptions Options(std::string text) {
  return {.template_text = std::move(text), .helper_path = KT_BINARY_DIR "/bin/kt-template"};
}

std::unique_ptr<PromptRenderer> Renderer(const TemplateOptions& options) {
  auto renderer = TemplateProcess::Create(options);
  EXPECT_TRUE(renderer.ok()) << renderer.status();
  return renderer.ok() ? *std::move(renderer) : nullptr;
}

std::string RenderText(std::string text, const Json& variables) {
  auto rendered = Renderer(Options(std::move(text)))->Render(variables);
  return rendered.ok() ? *rendered : std::string(rendered.status().ToString());
}

TEST(TemplateProcessTest, VariablesAreThoseOfTransformers) {
  TemplateOptions options =
      Options("{{ bos_token }}{{ tools is none }}{{ documents is none }}{{ other is defined }}\n");
  options.bos_token = "<s>";
  EXPECT_EQ(*Renderer(options)->Render(Json::object()), "<s>TrueTrueFalse");
}

TEST(TemplateProcessTest, TojsonKeepsOrderAndCharacters) {
  Json variables = {{"x", {{"z", 1}, {"a", "é<>&'"}, {"list", {1, 2.5, nullptr, true}}}}};
  EXPECT_EQ(RenderText("{{ x|tojson }}", variables),
            R"({"z": 1, "a": "é<>&'", "list": [1, 2.5, null, true]})");
  EXPECT_EQ(RenderText("{{ x.list|tojson(indent=2) }}", variables),
            "[\n  1,\n  2.5,\n  null,\n  true\n]");
}

TEST(TemplateProcessTest, BlocksAreTrimmedAndLoopsMayBreak) {
  EXPECT_EQ(RenderText("  {% for i in [1, 2, 3] %}\n{% if i == 3 %}{% break %}{% endif %}\n{{ i "
                       "}}\n  {% endfor %}\n",
                       Json::object()),
            "1\n2\n");
  EXPECT_EQ(RenderText("{% generation %}a{% endgeneration %}b", Json::object()), "ab");
  EXPECT_THAT(RenderText("{{ strftime_now('%Y-%m-%d') }}", Json::object()),
              testing::MatchesRegex("20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]"));
}

TEST(TemplateProcessTest, RaiseIsInvalidArgumentWithItsMessage) {
  auto renderer =
      Renderer(Options("{% if bad %}{{ raise_exception('Roles must alternate') }}{% endif %}ok"));
  auto status = renderer->Render({{"bad", true}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(status), "chat template: Roles must alternate");
  EXPECT_EQ(*renderer->Render(Json::object()), "ok");
}

TEST(TemplateProcessTest, SandboxKeepsTheTemplateIn) {
  for (const char* text :
       {"{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ x.append(1) }}", "{% include '/etc/passwd' %}",
        "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['os'].getpid() }}"}) {
    auto status = Renderer(Options(text))->Render({{"x", {1}}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(TemplateProcessTest, BrokenTemplateIsRefusedAtStart) {
  auto status = TemplateProcess::Create(Options("line one\n{% if %}")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("line 2"));
}

TEST(TemplateProcessTest, EndlessTemplateIsStoppedAndTheNextRenders) {
  TemplateOptions options = Options(
      "{% if bad %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor "
      "%}{% endif %}ok");
  options.time_limit_ms = 1000;
  auto renderer = Renderer(options);
  EXPECT_EQ(renderer->Render({{"bad", true}}).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(*renderer->Render(Json::object()), "ok");
}

TEST(TemplateProcessTest, EndlessSingleOperationIsStopped) {
  TemplateOptions options = Options("{% if bad %}{{ n ** (10 ** 7) }}{% endif %}ok");
  options.time_limit_ms = 1000;
  auto renderer = Renderer(options);
  EXPECT_EQ(renderer->Render({{"bad", true}, {"n", 1000000000}}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(*renderer->Render(Json::object()), "ok");
}

TEST(TemplateProcessTest, GreedyTemplateIsResourceExhaustedAndTheNextRenders) {
  auto renderer = Renderer(Options("{% if bad %}{{ ('x' * 1000000000)|length }}{% endif %}ok"));
  EXPECT_EQ(renderer->Render({{"bad", true}}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*renderer->Render(Json::object()), "ok");
}

TEST(TemplateProcessTest, HugeTextIsResourceExhaustedAndTheNextRenders) {
  auto renderer = Renderer(Options("{% if bad %}{{ 'x' * n }}{% endif %}ok"));
  EXPECT_EQ(renderer->Render({{"bad", true}, {"n", 70000000}}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*renderer->Render(Json::object()), "ok");
}

TEST(TemplateProcessTest, LargeRequestsAndAnswersPass) {
  std::string text(8 << 20, 'y');
  EXPECT_EQ(*Renderer(Options("{{ x }}"))->Render({{"x", text}}), text);
}

// The process id of a child of this one, as /proc tells it.
pid_t HelperPid() {
  std::ifstream children("/proc/self/task/" + std::to_string(getpid()) + "/children");
  pid_t pid = 0;
  children >> pid;
  return pid;
}

TEST(TemplateProcessTest, KilledHelperIsReplaced) {
  auto renderer = Renderer(Options("ok"));
  pid_t pid = HelperPid();
  ASSERT_GT(pid, 0);
  kill(pid, SIGKILL);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(*renderer->Render(Json::object()), "ok");
  EXPECT_NE(HelperPid(), pid);
  renderer.reset();
  EXPECT_EQ(HelperPid(), 0);
}

TEST(TemplateProcessTest, MissingHelperIsUnavailable) {
  TemplateOptions options = Options("ok");
  options.helper_path = "/nonexistent/kt-template";
  auto status = TemplateProcess::Create(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), HasSubstr("/nonexistent/kt-template"));
}

TEST(TemplateProcessTest, ManyThreadsEachGetTheirOwnText) {
  auto renderer = Renderer(Options("{{ x }}"));
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i)
        EXPECT_EQ(*renderer->Render({{"x", t * 1000 + i}}), std::to_string(t * 1000 + i));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(TemplateGoldenTest, PublishedTemplatesRenderAsInTransformers) {
  const std::filesystem::path dir = KT_SOURCE_DIR "/../shared/fixtures/templates";
  if (!std::filesystem::exists(dir))
    GTEST_SKIP() << dir << " is not there: the goldens of published templates were not checked";
  int rendered = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.path().extension() != ".json") continue;
    Json golden = *ReadJsonFile(entry.path().string());
    if (!golden["template"].is_string()) continue;  // made by a Python encoder, not by a template
    SCOPED_TRACE(entry.path().filename().string());
    TemplateOptions options = Options(ReadText(dir / golden["template"].get<std::string>()));
    options.bos_token = golden["bos_token"];
    options.eos_token = golden["eos_token"];
    auto renderer = Renderer(options);
    ToolArguments form = DetectToolArguments(renderer.get());
    for (Json& item : golden["cases"]) {
      SCOPED_TRACE(item["name"].get<std::string>());
      auto text = renderer->Render(item["input"]);
      if (item.contains("error")) {
        EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
        continue;
      }
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(*text, item["rendered"].get<std::string>());
      ++rendered;
      if (!item["input"].contains("tools")) continue;
      // What a client sends, with arguments as JSON text, comes to the same prompt.
      for (Json& message : item["input"]["messages"]) {
        if (!message.contains("tool_calls")) continue;
        for (Json& call : message["tool_calls"]) {
          Json& arguments = call["function"]["arguments"];
          if (arguments.is_object()) arguments = DumpJson(arguments);
        }
      }
      item["input"]["messages"] = *NormalizeMessages(item["input"]["messages"], form);
      EXPECT_EQ(*renderer->Render(item["input"]), item["rendered"].get<std::string>());
    }
  }
  EXPECT_GT(rendered, 100);
}

}  // namespace
}  // namespace kt
