// SPDX-License-Identifier: Apache-2.0
// `kt chat`: a conversation in the terminal with a running server, over its HTTP API.
#ifndef KT_CLI_CHAT_H_
#define KT_CLI_CHAT_H_

#include <optional>
#include <ostream>
#include <string>

#include "cli/http_client.h"
#include "cli/interrupt.h"
#include "cli/line_reader.h"
#include "common/base/json.h"

namespace kt::cli {

struct ChatOptions {
  std::string host = "127.0.0.1";
  int port = 30000;
  std::string api_key;
  std::string model;  // empty: the first one the server lists
  double temperature = 0.7;
  int max_tokens = 2048;
  std::string system;  // empty: none
  bool stream = true;
  std::optional<bool> save_history;  // unset: on a terminal, or when history_file is given
  std::string history_file;  // an existing conversation is continued; empty: a new file in the
                             // user's state folder
};

// Reads questions until the end of input; returns the exit code. Answers go to stdout.
int ChatMain(const ChatOptions& options);

// The conversation itself. One thread; `client` must have been made with interrupt.fd().
class ChatSession {
 public:
  // `terminal`: answers are cleared of control characters and decorated. `history_file` empty:
  // nothing is saved.
  ChatSession(ChatOptions options, std::string history_file, HttpClient& client, LineReader& reader,
              Interrupt& interrupt, std::ostream& out, bool terminal);

  // Finds the model and loads the conversation to continue. Errors are to be shown to the user as
  // they are.
  absl::Status Start();
  // Until the end of input, /quit or Ctrl-C at the prompt.
  void Run();

  const Json& messages() const { return messages_; }

 private:
  struct Answer;
  bool Command(const std::string& line);  // false: leave
  void Ask(const std::string& question);
  absl::Status Request(const Json& body, Answer& answer);
  absl::Status Stream(const Json& body, Answer& answer);
  void Show(const std::string& text, bool dimmed);
  void EndDimmed();
  void PrintFigures(const Answer& answer);
  void PrintConversation();
  void SetSystem(const std::string& text);
  absl::Status Load();
  absl::Status Save() const;

  ChatOptions options_;
  const std::string history_file_;
  HttpClient& client_;
  LineReader& reader_;
  Interrupt& interrupt_;
  std::ostream& out_;
  const bool terminal_;
  bool dimmed_ = false;
  Json messages_ = Json::array();  // {"role", "content"}
  std::string last_question_;
};

}  // namespace kt::cli

#endif  // KT_CLI_CHAT_H_
