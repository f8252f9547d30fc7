// SPDX-License-Identifier: Apache-2.0
// The flags of `kt run`, in one table: the parser, --help and the table of docs/flags.md are made
// from it.
#ifndef KT_CLI_FLAGS_H_
#define KT_CLI_FLAGS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/presets.h"
#include "cli/run_options.h"

namespace kt::cli {

enum class FlagUse {
  kWorks,
  kAccepted,  // without effect here; the reason is logged at start
  kRefused,   // not built yet
};

using FlagTarget =
    std::variant<std::monostate, bool RunOptions::*, int64_t RunOptions::*, double RunOptions::*,
                 std::string RunOptions::*, std::vector<int64_t> RunOptions::*>;

struct Flag {
  std::string section;       // heading in --help and docs
  std::string names;         // "--port,-p"; a name without dashes is positional
  std::string value;         // placeholder ("N", "N..." for several); empty: a switch
  FlagTarget target;         // none for flags without effect
  std::string default_text;  // for the docs; empty: none
  FlagUse use;
  std::string text;         // what it does; why it has no effect; what is missing
  double min = 0, max = 0;  // of numbers
  std::vector<std::string> supported =
      {};  // if not empty, all other values are refused as not built yet
  std::vector<std::string> choices = {};  // if not empty, all other values are wrong
  bool automatic = false;                 // of whole numbers: `auto` is one too (kAutomatic)
};

const std::vector<Flag>& FlagTable();

// The tables of docs/flags.md.
std::string FlagsMarkdown();

// The flags on a command of the program.
class RunFlags {
 public:
  // Adds every flag to `command`, which outlives this.
  explicit RunFlags(CLI::App* command);

  // After CLI11 has parsed the command line: reads the file of --config (the command line wins),
  // checks and converts all values, puts the directory in the place of a model's name, and takes
  // from the name's preset what was not given. InvalidArgument: one sentence with flag, value and
  // what is allowed. Unimplemented: one sentence with all flags that are not built yet. NotFound:
  // the name is known but no directory of it.
  absl::StatusOr<RunOptions> Read();

 private:
  absl::Status ReadConfigFile(const std::string& path);
  absl::Status ApplyPreset(const Preset& preset, RunOptions* options);

  std::vector<std::pair<const Flag*, CLI::Option*>> options_;
  CLI::Option* config_;
};

}  // namespace kt::cli

#endif  // KT_CLI_FLAGS_H_
