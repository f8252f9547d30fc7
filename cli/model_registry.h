// SPDX-License-Identifier: Apache-2.0
// The user's names for model directories: one JSON file, {"models": [{"name": ..., "path": ...}]}.
#ifndef KT_CLI_MODEL_REGISTRY_H_
#define KT_CLI_MODEL_REGISTRY_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/presets.h"

namespace kt::cli {

struct RegisteredModel {
  std::string name;  // 1 to 64 letters, digits, ".", "_" and "-"; no two differ in case only
  std::string path;  // absolute
};
using RegisteredModels = std::vector<RegisteredModel>;

// $XDG_CONFIG_HOME/kt/models.json, else ~/.config/kt/models.json; empty: neither variable is set.
std::string RegistryPath();

// No file: none. InvalidArgument names file, field and value; nothing in the file is believed.
absl::StatusOr<RegisteredModels> ReadRegistry(const std::string& file);

// Reads the file, lets `change` change the models and puts the new file in the place of the old one
// at once; other updates wait. On an error, which may be `change`'s own, the file stays as it was.
absl::Status UpdateRegistry(const std::string& file,
                            const std::function<absl::Status(RegisteredModels*)>& change);

// The model with this name in upper or lower case, else the one whose name means the same preset
// ("v3.2" is DeepSeek-V3.2). NotFound; InvalidArgument: there are several.
absl::StatusOr<RegisteredModel> FindModel(const RegisteredModels& models, const std::string& name);

// InvalidArgument: `name` is none.
absl::Status CheckModelName(const std::string& name);

// What a command line means by a model.
struct ResolvedModel {
  std::string path;
  std::string name;  // as registered; empty: a path was given
  const Preset* preset = nullptr;
};
// A directory comes before a name of the user's registry; what is neither is taken for a path.
// NotFound: the name of a preset without a directory.
absl::StatusOr<ResolvedModel> ResolveModel(const std::string& model);
// For command lines: a name becomes its directory. False, with the reason on stderr: it has none.
bool ResolveArgument(const char* command, std::string* model);

}  // namespace kt::cli

#endif  // KT_CLI_MODEL_REGISTRY_H_
