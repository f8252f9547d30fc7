// SPDX-License-Identifier: Apache-2.0
#ifndef KT_CLI_LINE_READER_H_
#define KT_CLI_LINE_READER_H_

#include <istream>
#include <memory>
#include <optional>
#include <string>

#include "cli/interrupt.h"

namespace kt::cli {

// Where a command's questions come from.
class LineReader {
 public:
  virtual ~LineReader() = default;
  // One line without its end; nullopt: end of input, or interrupted.
  virtual std::optional<std::string> Read(const std::string& prompt) = 0;
  // Puts an entry, which may be several lines, where the arrow keys find it.
  virtual void Remember(const std::string& entry) = 0;
};

// Plain lines of a pipe or file; shows no prompt.
std::unique_ptr<LineReader> NewStreamReader(std::istream& in);

// Line editing and history on the terminal at stdin (libedit). Entries are kept in `history_path`
// between sessions; empty: not kept.
std::unique_ptr<LineReader> NewTerminalReader(const Interrupt& interrupt,
                                              const std::string& history_path);

// A question: one line; further lines after a trailing backslash, or all lines between two that
// start with """.
std::optional<std::string> ReadQuestion(LineReader& reader);

}  // namespace kt::cli

#endif  // KT_CLI_LINE_READER_H_
