// SPDX-License-Identifier: Apache-2.0
#include "cli/model_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "cli/model_registry.h"
#include "common/base/exit_code.h"
#include "common/base/status.h"

namespace kt::cli {
namespace {

namespace fs = std::filesystem;

std::string PresetName(const std::string& name) {
  const Preset* preset = FindPreset(name);
  return preset == nullptr ? "none" : preset->name;
}

absl::StatusOr<std::string> ModelDir(const std::string& dir) {
  std::error_code error;
  const fs::path path = fs::canonical(dir, error);
  if (error || !fs::is_directory(path, error))
    return NotFound("{}: is not a directory; give that of the model", dir);
  if (!fs::exists(path / "config.json", error))
    return NotFound("{}: has no config.json; give a Hugging Face model directory", dir);
  return path.string();
}

absl::Status Add(const std::string& name, const std::string& dir) {
  KT_RETURN_IF_ERROR(CheckModelName(name));
  KT_ASSIGN_OR_RETURN(std::string path, ModelDir(dir));
  KT_RETURN_IF_ERROR(UpdateRegistry(RegistryPath(), [&](RegisteredModels* models) {
    for (const RegisteredModel& model : *models) {
      if (!absl::EqualsIgnoreCase(model.name, name)) continue;
      return AlreadyExists("{} is {} already; `kt model remove {}` forgets that", model.name,
                           model.path, model.name);
    }
    models->push_back({name, path});
    return absl::OkStatus();
  }));
  fmt::print("{}: {} (preset: {})\n", name, path, PresetName(name));
  return absl::OkStatus();
}

absl::Status Remove(const std::string& name) {
  RegisteredModel found;
  KT_RETURN_IF_ERROR(UpdateRegistry(RegistryPath(), [&](RegisteredModels* models) -> absl::Status {
    KT_ASSIGN_OR_RETURN(found, FindModel(*models, name));
    std::erase_if(*models, [&](const RegisteredModel& m) { return m.name == found.name; });
    return absl::OkStatus();
  }));
  fmt::print("{}: forgotten; its files stay in {}\n", found.name, found.path);
  return absl::OkStatus();
}

absl::Status List() {
  KT_ASSIGN_OR_RETURN(RegisteredModels models, ReadRegistry(RegistryPath()));
  if (models.empty()) fmt::print("no models; `kt model add NAME DIR` names one\n");
  size_t width = 0;
  for (const RegisteredModel& model : models) width = std::max(width, model.name.size());
  for (const RegisteredModel& model : models) {
    std::error_code error;
    fmt::print("{:<{}}  {:<18}  {}{}\n", model.name, width, PresetName(model.name), model.path,
               fs::is_directory(model.path, error) ? "" : "  (is not there)");
  }
  return absl::OkStatus();
}

absl::Status Path(const std::string& name) {
  KT_ASSIGN_OR_RETURN(RegisteredModels models, ReadRegistry(RegistryPath()));
  KT_ASSIGN_OR_RETURN(RegisteredModel model, FindModel(models, name));
  fmt::print("{}\n", model.path);
  return absl::OkStatus();
}

}  // namespace

void RegisterModelCommand(CLI::App& app, int* exit_code) {
  struct Arguments {
    std::string name, dir;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "model", "Names for model directories, which `kt run NAME` and its relatives take");
  command->require_subcommand(1);
  auto add = [&](const char* verb, const char* what, bool takes_name,
                 std::function<absl::Status(const Arguments&)> act) {
    CLI::App* sub = command->add_subcommand(verb, what);
    if (takes_name) {
      sub->add_option("NAME", arguments->name, "name of the model, in upper or lower case")
          ->required();
    }
    sub->callback([arguments, act, verb, exit_code] {
      absl::Status status = act(*arguments);
      if (status.ok()) return;
      fmt::print(stderr, "kt model {}: {}\n", verb, Message(status));
      *exit_code = absl::IsInternal(status) ? kExitFailure : kExitUsage;
    });
    return sub;
  };
  add("add", "Give a model's directory a name", true,
      [](const Arguments& a) { return Add(a.name, a.dir); })
      ->add_option("DIR", arguments->dir, "Hugging Face directory of the model")
      ->required();
  add("list", "Show the names, their presets and directories", false,
      [](const Arguments&) { return List(); });
  add("path", "Print the directory of a name", true,
      [](const Arguments& a) { return Path(a.name); });
  add("remove", "Forget a name; the model's files stay", true,
      [](const Arguments& a) { return Remove(a.name); });
  add("presets", "Print the table of docs/presets.md: models that are known by name", false,
      [](const Arguments&) {
        fmt::print("{}", PresetsMarkdown());
        return absl::OkStatus();
      });
}

}  // namespace kt::cli
