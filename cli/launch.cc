// SPDX-License-Identifier: Apache-2.0
#include "cli/launch.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cli/runtime_dir.h"
#include "common/base/json.h"
#include "common/base/status.h"
#include "common/ipc/unique_fd.h"
#include "common/rpc/runtime_config.h"

namespace kt::cli {
namespace {

constexpr int64_t kStopMarginMs = 5000;  // a process's own clean-up, after draining

// The API key is in it: for the user's eyes only.
absl::Status WritePrivateFile(const std::string& path, const std::string& text) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid() ||
      write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return Internal("{}: cannot be written: {}", path, strerror(errno));
  }
  return absl::OkStatus();
}

ProcessSpec Worker(const std::string& program_dir, const std::string& program,
                   const std::string& config_path, int index) {
  ProcessSpec worker;
  worker.name = fmt::format("{}-{}", program, index);
  worker.argv = {program_dir + "/" + program, "--config", config_path, "--index",
                 std::to_string(index)};
  worker.stop_order = 1;  // after the coordinator, whose requests need them
  worker.stop_timeout_ms = kStopMarginMs;
  return worker;
}

}  // namespace

std::string ProgramDir() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

int64_t MonotonicNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

NodeSpec MakeNodeSpec(const proto::RuntimeConfig& config, const std::string& program_dir,
                      int64_t started_ns) {
  NodeSpec spec;
  spec.listen_host = config.server().host();
  spec.listen_port = config.server().port();
  spec.ready_text =
      fmt::format("http://{{address}}/v1 model={}", config.model().served_model_name());
  spec.started_ns = started_ns;
  spec.log_level = config.log().level();
  spec.log_format = config.log().format();

  std::string config_path = config.runtime_dir() + "/" + kRuntimeConfigName;
  ProcessSpec coordinator;
  coordinator.name = "kt-coordinator";
  coordinator.argv = {program_dir + "/kt-coordinator", "--config", config_path};
  coordinator.stop_timeout_ms = config.server().drain_timeout_ms() + kStopMarginMs;
  coordinator.critical = coordinator.reports_ready = coordinator.inherits_listener = true;
  spec.processes.push_back(std::move(coordinator));
  for (int i = 0; i < config.device().tensor_parallel_size(); ++i) {
    spec.processes.push_back(Worker(program_dir, "kt-gpu-worker", config_path, i));
  }
  for (int i = 0; i < config.experts().worker_count(); ++i) {
    spec.processes.push_back(Worker(program_dir, "kt-cpu-expert-worker", config_path, i));
  }
  return spec;
}

absl::StatusOr<Launch> PrepareLaunch(proto::RuntimeConfig config, int64_t started_ns) {
  RemoveDeadRuntimeDirs();
  Launch launch;
  KT_ASSIGN_OR_RETURN(launch.runtime_dir, CreateRuntimeDir());
  std::string program_dir = ProgramDir();
  launch.program = program_dir + "/kt-node";
  launch.spec_path = launch.runtime_dir + "/node.json";
  config.set_runtime_dir(launch.runtime_dir);
  absl::Status written = WritePrivateFile(launch.runtime_dir + "/" + kRuntimeConfigName,
                                          RuntimeConfigToJson(config, true));
  if (written.ok())
    written = WritePrivateFile(
        launch.spec_path,
        DumpJson(NodeSpecToJson(MakeNodeSpec(config, program_dir, started_ns)), 2));
  if (!written.ok()) {
    std::error_code error;
    std::filesystem::remove_all(launch.runtime_dir, error);
    return written;
  }
  return launch;
}

absl::Status ExecNode(const Launch& launch) {
  execl(launch.program.c_str(), "kt-node", "--spec", launch.spec_path.c_str(), nullptr);
  absl::Status failed = Internal("cannot start {}: {}", launch.program, strerror(errno));
  std::error_code error;
  std::filesystem::remove_all(launch.runtime_dir, error);
  return failed;
}

}  // namespace kt::cli
