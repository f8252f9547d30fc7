// SPDX-License-Identifier: Apache-2.0
#include "cli/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/fake_http_server.h"
#include "common/base/status.h"

namespace kt::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Delta(const std::string& field, const std::string& text) {
  return DumpJson({{"choices", {{{"index", 0}, {"delta", {{field, text}}}}}}});
}

// A server that lists one model and answers every chat in the same way.
class ChatTest : public testing::Test {
 protected:
  void Serve(std::function<void(const FakeConnection&)> chat) {
    server_ = std::make_unique<FakeHttpServer>([this, chat](const FakeConnection& c) {
      if (c.request().starts_with("GET /v1/models "))
        return c.SendJson(200, R"({"data":[{"id":"first"},{"id":"second"}]})");
      bodies_.push_back(c.body());
      chat(c);
    });
  }
  static void AnswerHello(const FakeConnection& c) {
    c.StartEvents();
    c.SendEvent(R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]})");
    c.SendEvent(Delta("reasoning_content", "hm"));
    c.SendEvent(Delta("content", "Hel"));
    c.SendEvent(Delta("content", "lo"));
    c.SendEvent(
        R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}})");
    c.SendEvent("[DONE]");
    c.EndEvents();
  }

  // Types `input` and returns all output; the session is destroyed with the server.
  std::string Chat(const std::string& input, ChatOptions options = {}, bool terminal = false) {
    HttpClient client(
        {.host = "127.0.0.1", .port = server_->port(), .interrupt_fd = interrupt_.fd()});
    std::istringstream in(input);
    std::ostringstream out;
    const auto reader = NewStreamReader(in);
    ChatSession session(options, options.history_file, client, *reader, interrupt_, out, terminal);
    status_ = session.Start();
    if (status_.ok()) session.Run();
    messages_ = session.messages();
    server_.reset();
    return out.str();
  }
  Json Body(size_t i) { return ParseJson(bodies_.at(i)).value(); }

  Interrupt interrupt_;
  std::unique_ptr<FakeHttpServer> server_;
  std::vector<std::string> bodies_;
  absl::Status status_;
  Json messages_;
};

TEST_F(ChatTest, StreamsAnswersAndKeepsTheConversation) {
  Serve(AnswerHello);
  const std::string out =
      Chat("Hi\nAnd now?\n", {.temperature = 0.25, .max_tokens = 9, .system = "Be brief"});
  EXPECT_THAT(out, HasSubstr("Hello\n[TTFT "));
  EXPECT_THAT(out, HasSubstr("7 prompt tokens, 3 tokens in "));
  EXPECT_THAT(out, HasSubstr(" tok/s]"));
  ASSERT_EQ(bodies_.size(), 2u);
  const Json body = Body(1);
  EXPECT_EQ(body["model"], "first");
  EXPECT_EQ(body["temperature"], 0.25);
  EXPECT_EQ(body["max_tokens"], 9);
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(
      DumpJson(body["messages"]),
      R"([{"role":"system","content":"Be brief"},{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"},)"
      R"({"role":"user","content":"And now?"}])");
}

TEST_F(ChatTest, ShowsAWholeAnswerWithoutStreaming) {
  Serve([](const FakeConnection& c) {
    c.SendJson(
        200,
        R"({"choices":[{"message":{"role":"assistant","content":"Whole"}}],"usage":{"prompt_tokens":1,"completion_tokens":2}})");
  });
  EXPECT_THAT(Chat("Hi\n", {.model = "mine", .stream = false}), HasSubstr("Whole\n[TTFT"));
  EXPECT_EQ(Body(0)["model"], "mine");
  EXPECT_EQ(Body(0)["stream"], false);
  EXPECT_FALSE(Body(0).contains("stream_options"));
}

TEST_F(ChatTest, CommandsWorkAndUnknownOnesAreNamed) {
  Serve(AnswerHello);
  const std::string out = Chat(
      "/help\n/retry\nHi\n/history\n/retry\n/info\n/system "
      "Rhyme\n/nonsense\n/clear\n/history\nBye\n/quit\nnever sent\n");
  EXPECT_THAT(out, HasSubstr("/retry           ask the last question again"));
  EXPECT_THAT(out, HasSubstr("There is no question to ask again."));
  EXPECT_THAT(out, HasSubstr("user: Hi\nassistant: Hello\n"));
  EXPECT_THAT(out, HasSubstr("model first"));
  EXPECT_THAT(out, HasSubstr("System message: Rhyme"));
  EXPECT_THAT(out, HasSubstr("There is no command /nonsense"));
  ASSERT_EQ(bodies_.size(), 3u);
  EXPECT_EQ(Body(1)["messages"], Body(0)["messages"]);  // the retried question, without its answer
  EXPECT_EQ(DumpJson(Body(2)["messages"]),
            R"([{"role":"system","content":"Rhyme"},{"role":"user","content":"Bye"}])");
}

TEST_F(ChatTest, QuestionsOfSeveralLines) {
  Serve(AnswerHello);
  Chat("one \\\ntwo\n\"\"\"three\nfour\n\"\"\"\n");
  EXPECT_EQ(Body(0)["messages"][0]["content"], "one \ntwo");
  EXPECT_EQ(Body(1)["messages"][2]["content"], "three\nfour");
}

TEST_F(ChatTest, CtrlCStopsTheAnswerAndClosesTheConnection) {
  bool closed = false;
  int chats = 0;
  const CatchSigint catch_sigint(interrupt_);
  Serve([&](const FakeConnection& c) {
    if (++chats > 1) return AnswerHello(c);
    c.StartEvents();
    c.SendEvent(Delta("content", "Endless"));
    raise(SIGINT);
    closed = c.ClientCloses();
  });
  const std::string out = Chat("Hi\nAgain\n");
  EXPECT_TRUE(closed);
  EXPECT_THAT(out, HasSubstr("(stopped)"));
  EXPECT_THAT(out, HasSubstr("Hello\n"));  // the session goes on
}

TEST_F(ChatTest, ReportsErrorsInTheServersWords) {
  int chats = 0;
  Serve([&](const FakeConnection& c) {
    switch (++chats) {
      case 1:
        return c.SendJson(400, R"({"error":{"message":"prompt of 9 tokens, limit 8"}})");
      case 2:
        return c.SendJson(401, R"({"error":{"message":"bad key"}})");
      case 3:
        return c.SendJson(500, "oops");
      case 4:
        c.StartEvents();
        c.SendEvent(R"({"error":{"message":"worker lost"}})");
        return c.EndEvents();
      case 5:
        c.StartEvents();
        c.SendEvent("not json");
        return c.EndEvents();
      default:
        c.StartEvents();
        c.SendEvent(Delta("content", "Half"));
        return c.EndEvents();
    }
  });
  const std::string out = Chat("1\n2\n3\n4\n5\n6\n");
  EXPECT_THAT(out, HasSubstr("prompt of 9 tokens, limit 8"));
  EXPECT_THAT(out, HasSubstr("pass the right one with --api-key"));
  EXPECT_THAT(out, HasSubstr("HTTP status 500"));
  EXPECT_THAT(out, HasSubstr("worker lost"));
  EXPECT_THAT(out, HasSubstr("no JSON object"));
  EXPECT_THAT(out, HasSubstr("the stream ended before the answer was complete"));
  EXPECT_EQ(DumpJson(messages_),
            R"([{"role":"user","content":"6"},{"role":"assistant","content":"Half"}])");
}

TEST_F(ChatTest, SaysSoWhenTheKeyIsWrongOrNoServerIsThere) {
  server_ = std::make_unique<FakeHttpServer>(
      [](const FakeConnection& c) { c.SendJson(401, R"({"error":{"message":"bad key"}})"); });
  Chat("Hi\n");
  EXPECT_EQ(status_.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(Message(status_), HasSubstr("--api-key"));

  int port = 0;
  {
    port = FakeHttpServer([](const FakeConnection&) {}).port();
  }
  HttpClient nobody({.host = "127.0.0.1", .port = port});
  std::istringstream in;
  std::ostringstream out;
  const auto reader = NewStreamReader(in);
  ChatSession session({}, "", nobody, *reader, interrupt_, out, false);
  EXPECT_THAT(Message(session.Start()), HasSubstr("is `kt run` up on this host and port?"));
}

TEST_F(ChatTest, ATerminalGetsDimmedThoughtsAndNoControlCharacters) {
  Serve([](const FakeConnection& c) {
    c.StartEvents();
    c.SendEvent(Delta("reasoning_content", "hm"));
    c.SendEvent(Delta("content",
                      "a\033]0;evil\007b\xc2\x9b"
                      "c\n\u00e9"));
    c.SendEvent("[DONE]");
    c.EndEvents();
  });
  const std::string out = Chat("Hi\n", {}, true);
  EXPECT_THAT(out, HasSubstr("\033[2mhm\033[0m\n"));
  EXPECT_THAT(out, HasSubstr("a]0;evilbc\n\u00e9"));
}

TEST_F(ChatTest, SavesForTheUserAloneAndContinuesASavedConversation) {
  const std::string file = testing::TempDir() + fmt::format("kt_chat_{}.json", getpid());
  Serve(AnswerHello);
  Chat("Hi\n", {.history_file = file});
  struct stat info {};
  ASSERT_EQ(stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  Serve(AnswerHello);
  Chat("More\n", {.history_file = file});
  EXPECT_EQ(Body(1)["messages"].size(), 3u);
  EXPECT_EQ(Body(1)["messages"][1]["content"], "Hello");

  std::ofstream(file) << R"({"messages":[{"content":"x"}]})";
  Serve(AnswerHello);
  Chat("More\n", {.history_file = file});
  EXPECT_THAT(Message(status_), HasSubstr("a message has no role"));
  std::filesystem::remove(file);
}

// What a program writes on its terminal, read in order.
class Screen {
 public:
  explicit Screen(int terminal) : terminal_(terminal) {}
  // True as soon as `text` has come after what was awaited before; false when nothing more comes
  // for ten seconds.
  bool Await(const std::string& text) {
    pollfd wait{terminal_, POLLIN, 0};
    char chunk[1024];
    for (;;) {
      if (const size_t at = unread_.find(text); at != std::string::npos) {
        unread_.erase(0, at + text.size());
        return true;
      }
      const ssize_t count = poll(&wait, 1, 10000) > 0 ? read(terminal_, chunk, sizeof(chunk)) : 0;
      if (count <= 0) return false;
      unread_.append(chunk, static_cast<size_t>(count));
    }
  }

 private:
  int terminal_;
  std::string unread_;
};

TEST_F(ChatTest, EditsLinesOnATerminalAndCtrlCAtThePromptLeaves) {
  const std::string home = testing::TempDir() + fmt::format("kt_home_{}", getpid());
  int port_pipe[2];
  ASSERT_EQ(pipe(port_pipe), 0);
  int terminal = -1;
  const pid_t child =
      forkpty(&terminal, nullptr, nullptr, nullptr);  // before this process has threads
  ASSERT_GE(child, 0);
  if (child == 0) {
    setenv("HOME", home.c_str(), 1);
    setenv("TERM", "xterm", 1);
    unsetenv("XDG_STATE_HOME");
    ChatOptions options;
    if (read(port_pipe[0], &options.port, sizeof(options.port)) != sizeof(options.port)) _exit(9);
    _exit(ChatMain(options));
  }
  Serve(AnswerHello);
  const int port = server_->port();
  ASSERT_EQ(write(port_pipe[1], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  Screen screen(terminal);
  EXPECT_TRUE(screen.Await("first at http://127.0.0.1") && screen.Await("> "));
  const std::string typed = "Hx\x7fi \xc3\xa9\r";  // backspace, then a character of two bytes
  ASSERT_EQ(write(terminal, typed.data(), typed.size()), static_cast<ssize_t>(typed.size()));
  EXPECT_TRUE(screen.Await("Hello") && screen.Await("tok/s]") && screen.Await("> "));
  ASSERT_EQ(write(terminal, "\x1b[A\r", 4), 4);  // arrow up: the same question again
  EXPECT_TRUE(screen.Await("Hello") && screen.Await("tok/s]") && screen.Await("> "));
  ASSERT_EQ(write(terminal, "\x03", 1), 1);
  int exit_status = -1;
  ASSERT_EQ(waitpid(child, &exit_status, 0), child);
  EXPECT_TRUE(WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 0) << exit_status;
  server_.reset();
  ASSERT_EQ(bodies_.size(), 2u);
  EXPECT_EQ(Body(1)["messages"][0]["content"], "Hi \u00e9");
  EXPECT_EQ(Body(1)["messages"][2]["content"], "Hi \u00e9");
  EXPECT_TRUE(std::filesystem::exists(home + "/.local/state/kt/chat/lines"));
  for (int fd : {port_pipe[0], port_pipe[1], terminal}) close(fd);
  std::filesystem::remove_all(home);
}

}  // namespace
}  // namespace kt::cli
