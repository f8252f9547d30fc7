// SPDX-License-Identifier: Apache-2.0
#include "cli/chat_command.h"

#include <memory>

#include "cli/chat.h"

namespace kt::cli {

void RegisterChatCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* command = app.add_subcommand("chat", "Talk to a running server in the terminal");
  command->add_option("--host,-H", options->host, "Server's name or address")
      ->capture_default_str();
  command->add_option("--port,-p", options->port, "Server's port")
      ->capture_default_str()
      ->check(CLI::Range(1, 65535));
  command->add_option("--model,-m", options->model,
                      "Model id; without it the first one the server lists");
  command->add_option("--temperature,-t", options->temperature, "Sampling temperature")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 2.0));
  command->add_option("--max-tokens", options->max_tokens, "Tokens of one answer at most")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--system,-s", options->system, "System message");
  command->add_option("--api-key", options->api_key, "Key of a server that was started with one")
      ->envname("KT_API_KEY");
  command->add_flag("--stream,!--no-stream", options->stream,
                    "Show the answer as it comes (default) or at once");
  command->add_flag(
      "--save-history,!--no-save-history", options->save_history,
      "Keep the conversation in a file; default: on a terminal, or with --history-file");
  command->add_option("--history-file", options->history_file,
                      "File of the conversation; an existing one is continued");
  command->callback([options, exit_code] { *exit_code = ChatMain(*options); });
}

}  // namespace kt::cli
