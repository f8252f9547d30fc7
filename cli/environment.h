// SPDX-License-Identifier: Apache-2.0
#ifndef KT_CLI_ENVIRONMENT_H_
#define KT_CLI_ENVIRONMENT_H_

#include <string>
#include <vector>

namespace kt::cli {

// An environment variable that users of such runtimes know or that means something here.
struct EnvironmentVariable {
  std::string name;
  bool honoured;
  std::string text;  // what it does, or why it has no effect
};

const std::vector<EnvironmentVariable>& EnvironmentTable();

// One sentence for each variable that is set and has no effect here, to be logged at start.
std::vector<std::string> EnvironmentNotes();

// The table of docs/flags.md.
std::string EnvironmentMarkdown();

}  // namespace kt::cli

#endif  // KT_CLI_ENVIRONMENT_H_
