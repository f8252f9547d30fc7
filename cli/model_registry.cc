// SPDX-License-Identifier: Apache-2.0
#include "cli/model_registry.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "common/base/json.h"
#include "common/base/status.h"
#include "common/ipc/unique_fd.h"

namespace kt::cli {
namespace {

namespace fs = std::filesystem;

constexpr JsonLimits kLimits = {.bytes_max = size_t{1} << 20, .depth_max = 8};
constexpr size_t kModelsMax = 1024;
constexpr size_t kNameBytesMax = 64;

bool HasName(const RegisteredModel& model, const std::string& name) {
  return absl::EqualsIgnoreCase(model.name, name);
}

absl::StatusOr<RegisteredModels> ParseRegistry(const Json& json) {
  auto list = json.is_object() ? json.find("models") : json.end();
  if (list == json.end() || !list->is_array() || list->size() > kModelsMax)
    return InvalidArgument("must be an object with a list \"models\" of at most {} entries",
                           kModelsMax);
  RegisteredModels models;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("models[{}]", i);
    KT_ASSIGN_OR_RETURN(auto name, JsonString((*list)[i], "name", where));
    KT_ASSIGN_OR_RETURN(auto path, JsonString((*list)[i], "path", where));
    if (absl::Status status = CheckModelName(name.value_or("")); !status.ok())
      return Annotate(status, where + ".name");
    if (path.value_or("").rfind('/', 0) != 0 || path->find('\0') != std::string::npos)
      return InvalidArgument("{}.path: must be an absolute path, got {}", where,
                             JsonExcerpt(path.value_or("")));
    auto same = [&](const RegisteredModel& model) { return HasName(model, *name); };
    if (std::any_of(models.begin(), models.end(), same))
      return InvalidArgument("{}.name: {} is there twice", where, *name);
    models.push_back({*std::move(name), *std::move(path)});
  }
  return models;
}

absl::Status SystemError(const std::string& path, const char* what) {
  return Internal("{}: cannot be {}: {}", path, what, strerror(errno));
}

absl::Status WriteFile(const std::string& file, const std::string& text) {
  std::string next = file + ".XXXXXX";
  UniqueFd fd(mkostemp(next.data(), O_CLOEXEC));
  if (!fd.valid()) return SystemError(next, "created");
  bool written = write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                 fsync(fd.get()) == 0 && rename(next.c_str(), file.c_str()) == 0;
  if (written) return absl::OkStatus();
  absl::Status failed = SystemError(file, "written");
  unlink(next.c_str());
  return failed;
}

}  // namespace

std::string RegistryPath() {
  const char* config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && config[0] == '/') return std::string(config) + "/kt/models.json";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.config/kt/models.json";
  return "";
}

absl::StatusOr<RegisteredModels> ReadRegistry(const std::string& file) {
  std::error_code error;
  if (file.empty() || !fs::exists(file, error)) return RegisteredModels();
  auto read = [&]() -> absl::StatusOr<RegisteredModels> {
    if (!fs::is_regular_file(file, error)) return InvalidArgument("is not a file");
    KT_ASSIGN_OR_RETURN(Json json, ReadJsonFile(file, kLimits));
    return ParseRegistry(json);
  };
  auto models = read();
  if (models.ok()) return models;
  std::string why = Message(models.status());
  if (why.rfind(file, 0) != 0) why = fmt::format("{}: {}", file, why);
  return InvalidArgument("{}; mend or remove this file of `kt model`", why);
}

absl::Status UpdateRegistry(const std::string& file,
                            const std::function<absl::Status(RegisteredModels*)>& change) {
  if (file.empty())
    return FailedPrecondition(
        "the names of models have no place: neither HOME nor XDG_CONFIG_HOME is set");
  const std::string dir = fs::path(file).parent_path().string();
  std::error_code error;
  fs::create_directories(dir, error);
  UniqueFd lock(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.valid() || flock(lock.get(), LOCK_EX) != 0) return SystemError(dir, "used");
  KT_ASSIGN_OR_RETURN(RegisteredModels models, ReadRegistry(file));
  KT_RETURN_IF_ERROR(change(&models));
  if (models.size() > kModelsMax)
    return InvalidArgument("{}: cannot hold more than {} models; remove some", file, kModelsMax);
  Json list = Json::array();
  for (const RegisteredModel& model : models)
    list.push_back({{"name", model.name}, {"path", model.path}});
  return WriteFile(file, DumpJson({{"models", list}}, 2) + "\n");
}

absl::StatusOr<RegisteredModel> FindModel(const RegisteredModels& models, const std::string& name) {
  const RegisteredModel* found = nullptr;
  const Preset* preset = FindPreset(name);
  for (const RegisteredModel& model : models) {
    if (HasName(model, name)) return model;
    if (preset == nullptr || FindPreset(model.name) != preset) continue;
    if (found != nullptr) {
      return InvalidArgument("model {}: {} and {} are both {}; give one of these names", name,
                             found->name, model.name, preset->name);
    }
    found = &model;
  }
  if (found == nullptr) return NotFound("model {}: is no name of `kt model list`", name);
  return *found;
}

absl::Status CheckModelName(const std::string& name) {
  auto allowed = [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) || c == '.' || c == '_' || c == '-');
  };
  if (name.empty() || name.size() > kNameBytesMax || name[0] == '.' || name[0] == '-' ||
      !std::all_of(name.begin(), name.end(), allowed)) {
    return InvalidArgument(
        "a model's name has 1 to {} letters, digits, \".\", \"_\" and \"-\" and begins with "
        "none of \".\" and \"-\", got {}",
        kNameBytesMax, JsonExcerpt(name));
  }
  return absl::OkStatus();
}

absl::StatusOr<ResolvedModel> ResolveModel(const std::string& model) {
  std::error_code error;
  if (fs::is_directory(model, error) || !CheckModelName(model).ok()) return ResolvedModel{model};
  KT_ASSIGN_OR_RETURN(RegisteredModels models, ReadRegistry(RegistryPath()));
  absl::StatusOr<RegisteredModel> found = FindModel(models, model);
  if (found.ok()) return ResolvedModel{found->path, found->name, FindPreset(found->name)};
  if (!absl::IsNotFound(found.status())) return found.status();
  const Preset* preset = FindPreset(model);
  if (preset == nullptr) return ResolvedModel{model};
  return NotFound(
      "model {0}: nothing is downloaded here, so say once where {1} lies: `kt model add {0} DIR`",
      model, preset->name);
}

bool ResolveArgument(const char* command, std::string* model) {
  auto resolved = ResolveModel(*model);
  if (!resolved.ok()) {
    fmt::print(stderr, "kt {}: {}\n", command, Message(resolved.status()));
    return false;
  }
  *model = resolved->path;
  return true;
}

}  // namespace kt::cli
