// SPDX-License-Identifier: Apache-2.0
#include "cli/line_reader.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cwchar>

namespace kt::cli {
namespace {

constexpr char kPrompt[] = "> ";
constexpr char kMorePrompt[] = ". ";
constexpr char kBlock[] = "\"\"\"";

class StreamReader final : public LineReader {
 public:
  explicit StreamReader(std::istream& in) : in_(in) {}
  std::optional<std::string> Read(const std::string&) override {
    std::string line;
    if (!std::getline(in_, line)) return std::nullopt;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return line;
  }
  void Remember(const std::string&) override {}

 private:
  std::istream& in_;
};

class TerminalReader final : public LineReader {
 public:
  TerminalReader(const Interrupt& interrupt, std::string history_path)
      : interrupt_(interrupt), history_path_(std::move(history_path)) {
    setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    history_ = history_init();
    HistEvent event;
    history(history_, &event, H_SETSIZE, 1000);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!history_path_.empty()) history(history_, &event, H_LOAD, history_path_.c_str());
    editor_ = el_init("kt", stdin, stdout, stderr);
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_HIST, history, history_);
    el_set(editor_, EL_PROMPT, &TerminalReader::Prompt);
    el_set(editor_, EL_GETCFN, &TerminalReader::ReadChar);
  }

  ~TerminalReader() override {
    el_end(editor_);
    history_end(history_);
  }

  std::optional<std::string> Read(const std::string& prompt) override {
    prompt_ = prompt;
    int count = 0;
    const char* text = el_gets(editor_, &count);
    if (text == nullptr || count <= 0 || interrupt_.pending()) return std::nullopt;
    std::string line(text, static_cast<size_t>(count));
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    return line;
  }

  void Remember(const std::string& entry) override {
    HistEvent event;
    history(history_, &event, H_ENTER, entry.c_str());
    if (!history_path_.empty()) history(history_, &event, H_SAVE, history_path_.c_str());
  }

 private:
  static TerminalReader& Self(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return *static_cast<TerminalReader*>(self);
  }
  static char* Prompt(EditLine* editor) { return Self(editor).prompt_.data(); }

  // In place of libedit's own, so that Ctrl-C ends the line wherever it comes between two reads.
  static int ReadChar(EditLine* editor, wchar_t* out) {
    const TerminalReader& self = Self(editor);
    std::mbstate_t state{};
    for (;;) {
      pollfd wait[2] = {{STDIN_FILENO, POLLIN, 0}, {self.interrupt_.fd(), POLLIN, 0}};
      if (poll(wait, 2, -1) < 0) continue;
      if (wait[1].revents != 0) return 0;
      char byte;
      if (read(STDIN_FILENO, &byte, 1) != 1) return 0;
      const size_t used = std::mbrtowc(out, &byte, 1, &state);
      if (used == static_cast<size_t>(-2)) continue;  // more bytes of this character follow
      if (used == static_cast<size_t>(-1)) {
        state = {};
        continue;  // not a character: left out
      }
      return 1;
    }
  }

  const Interrupt& interrupt_;
  const std::string history_path_;
  std::string prompt_;
  History* history_ = nullptr;
  EditLine* editor_ = nullptr;
};

}  // namespace

std::unique_ptr<LineReader> NewStreamReader(std::istream& in) {
  return std::make_unique<StreamReader>(in);
}

std::unique_ptr<LineReader> NewTerminalReader(const Interrupt& interrupt,
                                              const std::string& history_path) {
  return std::make_unique<TerminalReader>(interrupt, history_path);
}

std::optional<std::string> ReadQuestion(LineReader& reader) {
  std::optional<std::string> line = reader.Read(kPrompt);
  if (!line) return std::nullopt;
  std::string question;
  if (line->starts_with(kBlock)) {
    question = line->substr(3);
    while ((line = reader.Read(kMorePrompt)) && !line->starts_with(kBlock)) {
      if (!question.empty()) question += '\n';
      question += *line;
    }
  } else {
    question = *line;
    while (question.ends_with('\\')) {
      question.back() = '\n';
      if (!(line = reader.Read(kMorePrompt))) break;
      question += *line;
    }
  }
  if (!question.empty()) reader.Remember(question);
  return question;
}

}  // namespace kt::cli
