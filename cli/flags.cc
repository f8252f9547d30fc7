// SPDX-License-Identifier: Apache-2.0
#include "cli/flags.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>

#include "cli/model_registry.h"
#include "common/base/json.h"
#include "common/base/status.h"

namespace kt::cli {
namespace {

using Values = std::vector<std::string>;

bool TakesSeveral(const Flag& flag) {
  return flag.value.size() > 3 && flag.value.substr(flag.value.size() - 3) == "...";
}

std::string DashedName(const CLI::Option& option) { return "--" + option.get_lnames().front(); }

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return text;
}

// The list's spelling of a value ("bf16" given for BF16); nullopt: it is not in the list.
std::optional<std::string> Find(const Values& list, const std::string& value) {
  for (const std::string& item : list) {
    if (Lower(item) == Lower(value)) return item;
  }
  return std::nullopt;
}

template <typename T>
absl::Status ReadNumber(const Flag& flag, const std::string& name, const std::string& text,
                        const char* kind, T& target) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool whole = error == std::errc() && end == text.data() + text.size() &&
               std::isfinite(static_cast<double>(value));
  if (!whole || static_cast<double>(value) < flag.min || static_cast<double>(value) > flag.max) {
    return InvalidArgument("{} {}: must be a {} from {} to {}{}", name, text, kind, flag.min,
                           flag.max, flag.automatic ? ", or auto" : "");
  }
  target = value;
  return absl::OkStatus();
}

bool SwitchValue(const std::string& text) {
  return text != "false" && text != "0" && text != "off";
}

// Puts the values of one flag where they belong.
struct Store {
  const Flag& flag;
  const std::string& name;
  const Values& values;
  RunOptions& options;

  absl::Status operator()(std::monostate) const { return absl::OkStatus(); }
  absl::Status operator()(bool RunOptions::*target) const {
    options.*target = SwitchValue(values.back());
    return absl::OkStatus();
  }
  absl::Status operator()(int64_t RunOptions::*target) const {
    if (flag.automatic && values.back() == "auto") {
      options.*target = kAutomatic;
      return absl::OkStatus();
    }
    return ReadNumber(flag, name, values.back(), "whole number", options.*target);
  }
  absl::Status operator()(double RunOptions::*target) const {
    return ReadNumber(flag, name, values.back(), "number", options.*target);
  }
  absl::Status operator()(std::string RunOptions::*target) const {
    const std::string& value = values.back();
    if (value.empty()) return InvalidArgument("{}: must not be empty", name);
    std::optional<std::string> choice = Find(flag.choices, value);
    if (!flag.choices.empty() && !choice)
      return InvalidArgument("{} {}: must be one of {}", name, value,
                             fmt::join(flag.choices, ", "));
    options.*target = choice.value_or(Find(flag.supported, value).value_or(value));
    return absl::OkStatus();
  }
  absl::Status operator()(std::vector<int64_t> RunOptions::*target) const {
    for (const std::string& value : values) {
      KT_RETURN_IF_ERROR(
          ReadNumber(flag, name, value, "whole number", (options.*target).emplace_back()));
    }
    return absl::OkStatus();
  }
};

// Why a value is not built yet; nullopt: it is.
std::optional<std::string> Missing(const Flag& flag, const std::string& name,
                                   const Values& values) {
  const std::string& value = values.back();
  if (flag.use == FlagUse::kRefused) {
    bool off = flag.supported.empty() ? flag.value.empty() && !SwitchValue(value)
                                      : Find(flag.supported, value).has_value();
    if (off) return std::nullopt;
    return flag.value.empty() ? fmt::format("{} ({})", name, flag.text)
                              : fmt::format("{} {} ({})", name, value, flag.text);
  }
  if (flag.supported.empty() || Find(flag.supported, value).has_value()) return std::nullopt;
  return fmt::format("{} {} (supported: {})", name, value, fmt::join(flag.supported, ", "));
}

struct ConfigEntry {
  std::string name;
  Values values;
};

absl::StatusOr<std::vector<ConfigEntry>> ParseJsonConfig(const std::string& text) {
  KT_ASSIGN_OR_RETURN(Json json, ParseJson(text));
  std::vector<ConfigEntry> entries;
  for (const auto& [name, value] : json.items()) {
    ConfigEntry entry{name, {}};
    for (const Json& item : value.is_array() ? value : Json::array({value})) {
      if (item.is_structured() || item.is_null())
        return InvalidArgument("{}: must be a text, number, boolean or list of these", name);
      entry.values.push_back(item.is_string() ? item.get<std::string>() : DumpJson(item));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

absl::StatusOr<std::vector<ConfigEntry>> ParseTomlConfig(const std::string& text) {
  std::vector<ConfigEntry> entries;
  try {  // CLI11 throws on what it cannot read
    std::istringstream stream(text);
    for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(stream)) {
      if (item.name == "++" || item.name == "--") continue;  // begin and end of a section
      if (!item.parents.empty() && item.parents != Values{"run"})
        return InvalidArgument("section [{}]: only [run] is known", item.parents[0]);
      entries.push_back({item.name, item.inputs});
    }
  } catch (const CLI::Error& error) {
    return InvalidArgument("{}", error.what());
  }
  return entries;
}

std::string Plain(std::string text) {  // for a cell of a Markdown table
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.replace(at, 1, "\\|");
  return text;
}

std::string NamesForDocs(const Flag& flag) {
  std::istringstream names(flag.names);
  Values dashed;
  for (std::string name; std::getline(names, name, ',');) dashed.push_back("`" + name + "`");
  return fmt::format("{}", fmt::join(dashed, " "));
}

std::string UseForDocs(const Flag& flag) {
  std::string values =
      flag.supported.empty() ? "" : fmt::format("`{}`", fmt::join(flag.supported, "`, `"));
  switch (flag.use) {
    case FlagUse::kWorks:
      return values.empty() ? "works" : fmt::format("works: {}; other values are refused", values);
    case FlagUse::kAccepted:
      return "accepted without effect";
    case FlagUse::kRefused:
      return values.empty() ? "refused: not built yet"
                            : fmt::format("refused: not built yet, except {}", values);
  }
  return "";
}

std::string TextForDocs(const Flag& flag) {
  bool number = std::holds_alternative<int64_t RunOptions::*>(flag.target) ||
                std::holds_alternative<double RunOptions::*>(flag.target) ||
                std::holds_alternative<std::vector<int64_t> RunOptions::*>(flag.target);
  return number ? fmt::format("{} ({} to {}{})", flag.text, flag.min, flag.max,
                              flag.automatic ? ", or `auto`: the most that fits" : "")
                : flag.text;
}

}  // namespace

RunFlags::RunFlags(CLI::App* command) {
  for (const Flag& flag : FlagTable()) {
    CLI::Option* option = flag.value.empty()
                              ? command->add_flag(flag.names, flag.text)
                              : command->add_option(flag.names)->description(flag.text);
    option->group(flag.section);
    if (!flag.value.empty()) {
      option->type_name(flag.value)->default_str(flag.default_text);
      TakesSeveral(flag) ? option->expected(1, 1024)
                         : option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
    options_.emplace_back(&flag, option);
  }
  config_ = command->add_option("--config")
                ->type_name("FILE")
                ->group("Command")
                ->description(
                    "File of flags without dashes (JSON object, or TOML/INI lines); the command "
                    "line wins");
}

absl::Status RunFlags::ReadConfigFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) return InvalidArgument("--config {}: cannot be read", path);
  std::string content = text.str();
  size_t first = content.find_first_not_of(" \t\r\n");
  bool is_json = first != std::string::npos && content[first] == '{';
  absl::StatusOr<std::vector<ConfigEntry>> entries =
      is_json ? ParseJsonConfig(content) : ParseTomlConfig(content);
  if (!entries.ok()) return InvalidArgument("--config {}: {}", path, Message(entries.status()));
  std::vector<CLI::Option*> from_command_line;
  for (const auto& [flag, option] : options_) {
    if (option->count() > 0) from_command_line.push_back(option);
  }
  for (const ConfigEntry& entry : *entries) {
    auto found = std::find_if(options_.begin(), options_.end(),
                              [&](const auto& o) { return o.second->check_lname(entry.name); });
    if (found == options_.end())
      return InvalidArgument("--config {}: {}: there is no flag --{}", path, entry.name,
                             entry.name);
    CLI::Option* option = found->second;
    if (entry.values.empty())
      return InvalidArgument("--config {}: {}: has no value", path, entry.name);
    if (std::find(from_command_line.begin(), from_command_line.end(), option) !=
        from_command_line.end())
      continue;
    option->clear();
    option->add_result(entry.values);
  }
  return absl::OkStatus();
}

absl::StatusOr<RunOptions> RunFlags::Read() {
  if (config_->count() > 0) KT_RETURN_IF_ERROR(ReadConfigFile(config_->results().back()));
  RunOptions options;
  Values missing;
  for (const auto& [flag, option] : options_) {
    if (option->count() == 0) continue;
    std::string name = DashedName(*option);
    const Values& values = option->results();
    if (std::optional<std::string> reason = Missing(*flag, name, values)) {
      missing.push_back(*reason);
      continue;
    }
    KT_RETURN_IF_ERROR(std::visit(Store{*flag, name, values, options}, flag->target));
    bool off = flag->value.empty() && !SwitchValue(values.back());
    if (flag->use == FlagUse::kAccepted && !off)
      options.notes.push_back(fmt::format("{} has no effect here: {}", name, flag->text));
  }
  if (!missing.empty())
    return Unimplemented("not built yet: {}; leave {} out", fmt::join(missing, ", "),
                         missing.size() == 1 ? "it" : "them");
  if (options.model.empty())
    return InvalidArgument("--model: is missing; give the model's directory");
  KT_ASSIGN_OR_RETURN(ResolvedModel resolved, ResolveModel(options.model));
  options.model = resolved.path;
  if (options.served_model_name.empty()) options.served_model_name = resolved.name;
  if (resolved.preset != nullptr) KT_RETURN_IF_ERROR(ApplyPreset(*resolved.preset, &options));
  return options;
}

namespace {

// Of presets, which are made for GPUs.
bool IsLayerwise(const std::string& name) {
  return name == "kt-gpu-prefill-token-threshold" || name == "kt-enable-dynamic-expert-update";
}

}  // namespace

absl::Status RunFlags::ApplyPreset(const Preset& preset, RunOptions* options) {
  for (const PresetFlag& wanted : preset.flags) {
    const auto& [flag, option] =
        *std::find_if(options_.begin(), options_.end(),
                      [&](const auto& o) { return o.second->check_lname(wanted.name); });
    if (option->count() > 0) continue;  // the user's own value
    const std::string name = DashedName(*option);
    const Values values = {wanted.value};
    const std::string shown = flag->value.empty() ? name : name + " " + wanted.value;
    std::string note;
    if (std::optional<std::string> reason = Missing(*flag, name, values)) {
      note = fmt::format("left out, not built yet: {}", *reason);
    } else if (options->device == "host" && IsLayerwise(wanted.name)) {
      note = fmt::format(
          "left out: {}: the host device computes where the CPU workers do, so that copying "
          "experts "
          "to it gains nothing",
          shown);
    } else if (flag->use == FlagUse::kAccepted) {
      note = fmt::format("{} has no effect here: {}", shown, flag->text);
    } else {
      KT_RETURN_IF_ERROR(std::visit(Store{*flag, name, values, *options}, flag->target));
      note = shown;
    }
    options->notes.push_back(fmt::format("preset {}: {}", preset.name, note));
  }
  return absl::OkStatus();
}

std::string FlagsMarkdown() {
  std::string text, section;
  for (const Flag& flag : FlagTable()) {
    if (flag.section != section) {
      section = flag.section;
      text += fmt::format(
          "\n### {}\n\n| flag | value | default | meaning or reason | here |\n| --- | --- | --- | "
          "--- | --- |\n",
          section);
    }
    text +=
        fmt::format("| {} | {} | {} | {} | {} |\n", NamesForDocs(flag), flag.value,
                    Plain(flag.default_text), Plain(TextForDocs(flag)), Plain(UseForDocs(flag)));
  }
  return text;
}

}  // namespace kt::cli
