// SPDX-License-Identifier: Apache-2.0
#include "cli/chat.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "common/base/exit_code.h"
#include "common/base/status.h"

namespace kt::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kHelp[] =
    "/help            this list\n"
    "/clear           forget the conversation\n"
    "/history         show the conversation\n"
    "/info            server, model and settings\n"
    "/retry           ask the last question again\n"
    "/system [TEXT]   show or set the system message\n"
    "/quit, /exit     leave (so do Ctrl-C and Ctrl-D at the prompt; Ctrl-C stops an answer)\n"
    "A line that ends in \\ goes on in the next one; \"\"\" starts and ends a text of several "
    "lines.\n";

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// What a model writes must not drive the terminal: control characters but line end and tab are left
// out.
std::string Harmless(const std::string& text) {
  std::string clean;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool c1 =
        c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c1) ++i;
    if (c1 || (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) continue;
    clean += text[i];
  }
  return clean;
}

std::string StringAt(const Json& object, const char* field) {
  const auto it = object.is_object() ? object.find(field) : object.end();
  return object.is_object() && it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

absl::Status ServerError(const HttpResponse& response) {
  std::string text;
  if (const auto json = ParseJson(response.body);
      json.ok() && json->is_object() && json->contains("error")) {
    text = StringAt((*json)["error"], "message");
  }
  if (text.empty()) text = fmt::format("HTTP status {}", response.status);
  if (response.status == 401)
    return Unauthenticated("the server refused the API key ({}); pass the right one with --api-key",
                           text);
  return FailedPrecondition("the server refused the request: {}", text);
}

absl::Status Reachable(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return status;
  return Annotate(status, "no answer from the server; is `kt run` up on this host and port?");
}

std::filesystem::path StateFolder() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return std::filesystem::path(state) / "kt";
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr && *home == '/' ? home : "/tmp") / ".local/state/kt";
}

// The folder of what is kept between sessions, readable by the user alone; empty where it cannot be
// made.
std::string MakeStateFolder() {
  std::error_code error;
  const auto folder = StateFolder() / "chat";
  std::filesystem::create_directories(folder, error);
  if (error) return "";
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
  return folder.string();
}

std::string TimeStamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &local);
  return text;
}

}  // namespace

struct ChatSession::Answer {
  std::string content;
  Clock::time_point asked, first, last;
  int64_t pieces = 0;          // that carried text
  int64_t prompt_tokens = -1;  // -1: the server did not say
  int64_t tokens = -1;

  void Count(const Json& usage) {
    if (!usage.is_object()) return;
    if (auto n = JsonInt(usage, "prompt_tokens", "usage"); n.ok() && *n) prompt_tokens = **n;
    if (auto n = JsonInt(usage, "completion_tokens", "usage"); n.ok() && *n) tokens = **n;
  }
};

ChatSession::ChatSession(ChatOptions options, std::string history_file, HttpClient& client,
                         LineReader& reader, Interrupt& interrupt, std::ostream& out, bool terminal)
    : options_(std::move(options)),
      history_file_(std::move(history_file)),
      client_(client),
      reader_(reader),
      interrupt_(interrupt),
      out_(out),
      terminal_(terminal) {}

absl::Status ChatSession::Start() {
  auto response = client_.Get("/v1/models");
  if (!response.ok()) return Reachable(response.status());
  if (response->status != 200) return ServerError(*response);
  if (options_.model.empty()) {
    KT_ASSIGN_OR_RETURN(const Json list, ParseJson(response->body));
    if (list.is_object() && list.contains("data") && list["data"].is_array() &&
        !list["data"].empty()) {
      options_.model = StringAt(list["data"][0], "id");
    }
    if (options_.model.empty())
      return FailedPrecondition("{}/v1/models lists no model; name one with --model",
                                client_.address());
  }
  KT_RETURN_IF_ERROR(Load());
  if (!options_.system.empty()) SetSystem(options_.system);
  if (terminal_)
    out_ << options_.model << " at " << client_.address() << "; /help lists the commands\n"
         << std::flush;
  return absl::OkStatus();
}

void ChatSession::Run() {
  while (const auto question = ReadQuestion(reader_)) {
    if (question->find_first_not_of(" \t\r\n") == std::string::npos) continue;
    if (question->starts_with('/')) {
      if (!Command(*question)) return;
    } else {
      Ask(*question);
    }
  }
  if (terminal_) out_ << "\n";
}

bool ChatSession::Command(const std::string& line) {
  const size_t space = line.find(' ');
  const std::string name = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
  if (name == "/quit" || name == "/exit") return false;
  if (name == "/help") {
    out_ << kHelp;
  } else if (name == "/clear") {
    const bool has_system = !messages_.empty() && StringAt(messages_[0], "role") == "system";
    messages_ = has_system ? Json::array({messages_[0]}) : Json::array();
    last_question_.clear();
    out_ << "The conversation is empty now.\n";
  } else if (name == "/history") {
    PrintConversation();
  } else if (name == "/info") {
    out_ << fmt::format(
        "server {}\nmodel {}\ntemperature {}, at most {} tokens an answer\n{} messages, {}\n",
        client_.address(), options_.model, options_.temperature, options_.max_tokens,
        messages_.size(), history_file_.empty() ? "not saved" : "saved in " + history_file_);
  } else if (name == "/system") {
    if (!rest.empty()) SetSystem(rest);
    const bool has_system = !messages_.empty() && StringAt(messages_[0], "role") == "system";
    out_ << "System message: " << (has_system ? StringAt(messages_[0], "content") : "none") << "\n";
  } else if (name == "/retry") {
    if (last_question_.empty()) {
      out_ << "There is no question to ask again.\n";
    } else {
      const size_t size = messages_.size();
      const bool answered = size >= 2 && StringAt(messages_[size - 2], "content") == last_question_;
      if (answered) messages_.erase(size - 2), messages_.erase(size - 2);
      Ask(last_question_);
    }
  } else {
    out_ << "There is no command " << name << "; /help lists them.\n";
  }
  out_ << std::flush;
  return true;
}

void ChatSession::Ask(const std::string& question) {
  last_question_ = question;
  const Json user = {{"role", "user"}, {"content", question}};
  Json body = {{"model", options_.model},
               {"messages", messages_},
               {"temperature", options_.temperature},
               {"max_tokens", options_.max_tokens},
               {"stream", options_.stream}};
  body["messages"].push_back(user);
  if (options_.stream) body["stream_options"] = {{"include_usage", true}};

  Answer answer;
  answer.asked = Clock::now();
  const absl::Status status = options_.stream ? Stream(body, answer) : Request(body, answer);
  EndDimmed();
  if (answer.pieces > 0) out_ << "\n";
  const bool stopped = absl::IsCancelled(status);
  if (stopped) {
    interrupt_.Clear();
    out_ << "(stopped)\n";
  } else if (!status.ok()) {
    out_ << "Error: " << Message(status) << "\n";
  }
  // A stopped or broken answer stays in the conversation as far as it came.
  if (answer.pieces > 0) {
    PrintFigures(answer);
    messages_.push_back(user);
    messages_.push_back({{"role", "assistant"}, {"content", answer.content}});
    if (const absl::Status saved = Save(); !saved.ok())
      out_ << "Warning: " << Message(saved) << "\n";
  }
  out_ << std::flush;
}

absl::Status ChatSession::Request(const Json& body, Answer& answer) {
  auto response = client_.Post("/v1/chat/completions", DumpJson(body));
  if (!response.ok()) return Reachable(response.status());
  if (response->status != 200) return ServerError(*response);
  KT_ASSIGN_OR_RETURN(const Json json, ParseJson(response->body));
  if (!json.is_object() || !json.contains("choices") || !json["choices"].is_array() ||
      json["choices"].empty() || !json["choices"][0].is_object()) {
    return DataLoss("the server's answer has no choices");
  }
  const Json message = json["choices"][0].value("message", Json::object());
  answer.content = StringAt(message, "content");
  answer.first = answer.last = Clock::now();
  answer.pieces = 1;
  Show(StringAt(message, "reasoning_content"), true);
  Show(answer.content, false);
  if (json.contains("usage")) answer.Count(json["usage"]);
  return absl::OkStatus();
}

absl::Status ChatSession::Stream(const Json& body, Answer& answer) {
  SseParser events;
  absl::Status failure;
  bool done = false;
  const auto on_event = [&](const std::string& data) {
    if (data == "[DONE]") {
      done = true;
      return;
    }
    const auto json = ParseJson(data);
    if (!json.ok() || !json->is_object()) {
      failure = DataLoss("the server sent an event that is no JSON object");
      return;
    }
    if (json->contains("error")) {
      failure = Aborted("the server ended the answer: {}", StringAt((*json)["error"], "message"));
      return;
    }
    if (json->contains("usage")) answer.Count((*json)["usage"]);
    if (!json->contains("choices") || !(*json)["choices"].is_array() || (*json)["choices"].empty())
      return;
    const Json& choice = (*json)["choices"][0];
    if (!choice.is_object() || !choice.contains("delta")) return;
    const std::string thought = StringAt(choice["delta"], "reasoning_content");
    const std::string text = StringAt(choice["delta"], "content");
    if (thought.empty() && text.empty()) return;
    answer.last = Clock::now();
    if (answer.pieces++ == 0) answer.first = answer.last;
    answer.content += text;
    Show(thought, true);
    Show(text, false);
  };
  const auto response =
      client_.PostStreaming("/v1/chat/completions", DumpJson(body), [&](std::string_view bytes) {
        if (const absl::Status fed = events.Feed(bytes, on_event); !fed.ok()) failure = fed;
        return failure.ok() && !done;
      });
  if (!failure.ok()) return failure;
  if (!response.ok()) return answer.pieces > 0 ? response.status() : Reachable(response.status());
  if (response->status != 200) return ServerError(*response);
  if (!done) return Unavailable("the stream ended before the answer was complete");
  return absl::OkStatus();
}

void ChatSession::Show(const std::string& text, bool dimmed) {
  if (text.empty()) return;
  if (terminal_ && dimmed && !dimmed_) {
    out_ << "\033[2m";
    dimmed_ = true;
  }
  if (!dimmed && dimmed_) {
    EndDimmed();
    out_ << "\n";
  }
  out_ << (terminal_ ? Harmless(text) : text) << std::flush;
}

void ChatSession::EndDimmed() {
  if (dimmed_) out_ << "\033[0m";
  dimmed_ = false;
}

void ChatSession::PrintFigures(const Answer& answer) {
  const int64_t tokens = answer.tokens >= 0 ? answer.tokens : answer.pieces;
  std::string figures = fmt::format("TTFT {:.2f} s", Seconds(answer.asked, answer.first));
  if (answer.prompt_tokens >= 0) figures += fmt::format(", {} prompt tokens", answer.prompt_tokens);
  figures += fmt::format(", {} tokens in {:.2f} s", tokens, Seconds(answer.asked, answer.last));
  // The first token belongs to the TTFT; a whole answer in one piece has no rate of its own.
  const double generating =
      options_.stream ? Seconds(answer.first, answer.last) : Seconds(answer.asked, answer.last);
  const int64_t generated = options_.stream ? tokens - 1 : tokens;
  if (generated > 0 && generating > 0)
    figures += fmt::format(", {:.1f} tok/s", static_cast<double>(generated) / generating);
  out_ << (terminal_ ? "\033[2m[" : "[") << figures << (terminal_ ? "]\033[0m\n" : "]\n");
}

void ChatSession::PrintConversation() {
  for (const Json& message : messages_) {
    const std::string content = StringAt(message, "content");
    out_ << StringAt(message, "role") << ": " << (terminal_ ? Harmless(content) : content) << "\n";
  }
}

void ChatSession::SetSystem(const std::string& text) {
  const Json message = {{"role", "system"}, {"content", text}};
  if (!messages_.empty() && StringAt(messages_[0], "role") == "system") {
    messages_[0] = message;
  } else {
    messages_.insert(messages_.begin(), message);
  }
}

absl::Status ChatSession::Load() {
  if (history_file_.empty() || access(history_file_.c_str(), F_OK) != 0) return absl::OkStatus();
  KT_ASSIGN_OR_RETURN(const Json saved, ReadJsonFile(history_file_));
  const bool is_list =
      saved.is_object() && saved.contains("messages") && saved["messages"].is_array();
  if (!is_list)
    return InvalidArgument(
        "{}: not a saved conversation (no list 'messages'); name another --history-file",
        history_file_);
  for (const Json& message : saved["messages"]) {
    if (StringAt(message, "role").empty())
      return InvalidArgument("{}: a message has no role", history_file_);
    messages_.push_back(
        {{"role", StringAt(message, "role")}, {"content", StringAt(message, "content")}});
  }
  return absl::OkStatus();
}

// Written beside the file and renamed, so that a full disk or a crash never costs what was saved
// before.
absl::Status ChatSession::Save() const {
  if (history_file_.empty()) return absl::OkStatus();
  const std::string temporary = history_file_ + ".new";
  const mode_t mask = umask(0077);
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  umask(mask);
  file << DumpJson({{"model", options_.model}, {"messages", messages_}}, 2) << "\n";
  file.close();
  if (!file || rename(temporary.c_str(), history_file_.c_str()) != 0) {
    unlink(temporary.c_str());
    return Unavailable("the conversation could not be saved in {}", history_file_);
  }
  return absl::OkStatus();
}

int ChatMain(const ChatOptions& options) {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  const bool save = options.save_history.value_or(terminal || !options.history_file.empty());
  const std::string folder = save ? MakeStateFolder() : "";
  std::string history_file = save ? options.history_file : "";
  if (history_file.empty() && !folder.empty()) history_file = folder + "/" + TimeStamp() + ".json";

  Interrupt interrupt;
  const CatchSigint catch_sigint(interrupt);
  HttpClient client({.host = options.host,
                     .port = options.port,
                     .api_key = options.api_key,
                     .interrupt_fd = interrupt.fd()});
  const auto reader = terminal
                          ? NewTerminalReader(interrupt, folder.empty() ? "" : folder + "/lines")
                          : NewStreamReader(std::cin);
  ChatSession session(options, history_file, client, *reader, interrupt, std::cout,
                      isatty(STDOUT_FILENO) != 0);
  if (const absl::Status status = session.Start(); !status.ok()) {
    std::cerr << "kt chat: " << Message(status) << "\n";
    return absl::IsCancelled(status) ? kExitInterrupted : kExitFailure;
  }
  session.Run();
  return kExitOk;
}

}  // namespace kt::cli
