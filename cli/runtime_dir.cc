// SPDX-License-Identifier: Apache-2.0
#include "cli/runtime_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "common/base/status.h"
#include "common/ipc/fd_passing.h"
#include "common/ipc/node_protocol.h"

namespace kt::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPathBytesMax = 80;

std::string Prefix() { return fmt::format("kt-{}-", getuid()); }

std::vector<std::string> Bases() {
  std::vector<std::string> bases;
  if (const char* xdg = std::getenv("XDG_RUNTIME_DIR");
      xdg != nullptr && xdg[0] == '/' && access(xdg, W_OK | X_OK) == 0)
    bases.push_back(xdg);
  bases.push_back("/tmp");
  return bases;
}

bool IsOurs(const std::string& path) {
  struct stat st {};
  return lstat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == getuid();
}

}  // namespace

absl::StatusOr<std::string> CreateRuntimeDir() {
  for (const std::string& base : Bases()) {
    std::string path = base + "/" + Prefix() + "XXXXXX";
    if (path.size() > kPathBytesMax) continue;
    if (mkdtemp(path.data()) != nullptr) return path;
    if (base == "/tmp") return Internal("runtime directory {}: {}", path, strerror(errno));
  }
  return Internal("runtime directory: no place for it");
}

std::vector<std::string> FindRuntimeDirs() {
  std::vector<std::string> found;
  for (const std::string& base : Bases()) {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(base, error)) {
      std::string path = entry.path().string();
      bool named = entry.path().filename().string().rfind(Prefix(), 0) == 0;
      if (named && IsOurs(path) && fs::exists(path + "/" + kNodeSocketName, error))
        found.push_back(path);
    }
  }
  return found;
}

void RemoveDeadRuntimeDirs() {
  for (const std::string& path : FindRuntimeDirs()) {
    std::error_code error;  // what cannot be removed is left
    absl::Status connected = ConnectToPath(path + "/" + kNodeSocketName).status();
    if (connected.code() == absl::StatusCode::kUnavailable) fs::remove_all(path, error);
  }
}

}  // namespace kt::cli
