// SPDX-License-Identifier: Apache-2.0
// Models that the tutorials start by name, with the flags that they give them.
#ifndef KT_CLI_PRESETS_H_
#define KT_CLI_PRESETS_H_

#include <string>
#include <string_view>
#include <vector>

namespace kt::cli {

struct PresetFlag {
  std::string name;  // of a row of FlagTable(), without dashes
  std::string value = "true";
};

// Defaults for a model, each used where the user gives no value. What depends on the machine
// (threads, NUMA nodes, ranks, experts that fit a device) and the weight format, which is read from
// the checkpoint, is no part of it.
struct Preset {
  std::string name;                  // "DeepSeek-V3.2"
  std::vector<std::string> aliases;  // lower case
  std::vector<PresetFlag> flags;
};

const std::vector<Preset>& PresetTable();

// By name or alias, in upper or lower case; nullptr: there is none.
const Preset* FindPreset(std::string_view name);

// The table of docs/presets.md.
std::string PresetsMarkdown();

}  // namespace kt::cli

#endif  // KT_CLI_PRESETS_H_
