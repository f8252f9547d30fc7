// SPDX-License-Identifier: Apache-2.0
// kt-node --spec RUNTIME_DIR/node.json: runs the processes listed there, see node/spec.h. The
// folder of the spec is the run's own and is removed at the end.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "common/base/exit_code.h"
#include "common/base/json.h"
#include "common/base/status.h"
#include "common/observe/log.h"
#include "node/node.h"
#include "node/spec.h"

namespace kt {
namespace {

absl::StatusOr<NodeSpec> ReadSpec(const std::string& path) {
  KT_ASSIGN_OR_RETURN(Json json, ReadJsonFile(path));
  absl::StatusOr<NodeSpec> spec = NodeSpecFromJson(json);
  return spec.ok() ? spec : Annotate(spec.status(), path);
}

int Main(int argc, char** argv) {
  if (argc != 3 || std::string_view(argv[1]) != "--spec") {
    fmt::print(stderr, "usage: kt-node --spec RUNTIME_DIR/node.json (written by kt run)\n");
    return kExitUsage;
  }
  std::string path = argv[2];
  absl::StatusOr<NodeSpec> spec = ReadSpec(path);
  absl::Status status =
      spec.ok() ? SetUpLog("kt-node", spec->log_level, spec->log_format) : spec.status();
  if (!status.ok()) {
    fmt::print(stderr, "kt-node: {}\n", Message(status));
    return kExitUsage;
  }
  std::error_code error;  // what cannot be removed is left: the run's result counts
  std::filesystem::path runtime_dir = std::filesystem::absolute(path, error).parent_path();
  int code = RunNode(*spec, runtime_dir.string());
  std::filesystem::remove_all(runtime_dir, error);
  return code;
}

}  // namespace
}  // namespace kt

int main(int argc, char** argv) { return kt::Main(argc, argv); }
