// SPDX-License-Identifier: Apache-2.0
#include "node/node.h"

#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "common/base/exit_code.h"
#include "common/base/json.h"
#include "common/base/status.h"
#include "common/ipc/node_protocol.h"
#include "node/available_memory.h"
#include "node/event_loop.h"
#include "node/listen_socket.h"
#include "node/node_service.h"
#include "node/posix_process_table.h"
#include "node/segment_store.h"
#include "node/supervisor.h"

namespace kt {
namespace {

constexpr int kLeftoverTimeoutMs = 2000;

int64_t MonotonicNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

TimeMs Now() { return MonotonicNs() / 1000000; }

std::vector<std::string> ExecPrefix() {
  const char* text = std::getenv("KT_EXEC_PREFIX");
  std::istringstream words(text == nullptr ? "" : text);
  std::vector<std::string> prefix;
  for (std::string word; words >> word;) prefix.push_back(word);
  return prefix;
}

// From here on the signals that the node handles come through the returned descriptor.
absl::StatusOr<UniqueFd> SignalsAsDescriptor() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  UniqueFd fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return Internal("signalfd: {}", strerror(errno));
  return fd;
}

std::string ReplaceAddress(std::string text, const std::string& address) {
  constexpr std::string_view kMark = "{address}";
  if (size_t at = text.find(kMark); at != std::string::npos)
    text.replace(at, kMark.size(), address);
  return text;
}

class Node {
 public:
  Node(const NodeSpec& spec, UniqueFd signals, ListenSocket listener)
      : spec_(spec),
        signals_(std::move(signals)),
        listener_(std::move(listener)),
        table_(spec.processes, listener_.fd.get(), ExecPrefix()),
        supervisor_(spec.processes, spec.restarts, this->tracked_table()),
        segments_([] { return AvailableMemoryBytes(); }),
        service_(&loop_, &segments_,
                 {[this] { return ProcessesJson(); },
                  [this](const std::string& name) { return KillProcess(name); }}) {}

  int Run(const std::string& socket_path);

 private:
  // Starts processes like the real table and watches their readiness.
  class WatchedTable : public ProcessTable {
   public:
    explicit WatchedTable(Node* node) : node_(node) {}
    absl::StatusOr<Started> Start(size_t index) override;
    void Signal(size_t index, int signal) override { node_->table_.Signal(index, signal); }

   private:
    Node* node_;
  };

  ProcessTable* tracked_table() { return &watched_table_; }
  void OnSignals();
  void OnReadable(size_t index);
  void PrintReady();
  std::string ProcessesJson() const;
  absl::Status KillProcess(const std::string& name);

  const NodeSpec& spec_;
  UniqueFd signals_;
  ListenSocket listener_;
  EventLoop loop_;
  PosixProcessTable table_;
  WatchedTable watched_table_{this};
  Supervisor supervisor_;
  SegmentStore segments_;
  NodeService service_;
};

absl::StatusOr<ProcessTable::Started> Node::WatchedTable::Start(size_t index) {
  if (int old = node_->table_.ready_fd(index); old >= 0) node_->loop_.Remove(old);
  KT_ASSIGN_OR_RETURN(Started started, node_->table_.Start(index));
  if (int fd = node_->table_.ready_fd(index); fd >= 0) {
    node_->loop_.Watch(fd, [node = node_, index] { node->OnReadable(index); });
  }
  return started;
}

int Node::Run(const std::string& socket_path) {
  if (absl::Status status = service_.Listen(socket_path); !status.ok()) {
    spdlog::error("{}", Message(status));
    return kExitFailure;
  }
  loop_.Watch(signals_.get(), [this] { OnSignals(); });
  supervisor_.Start(Now());
  while (!supervisor_.exit_code().has_value()) {
    std::optional<TimeMs> next = supervisor_.NextTimer();
    int timeout = next ? static_cast<int>(std::clamp<TimeMs>(*next - Now(), 0, INT32_MAX)) : -1;
    loop_.RunOnce(timeout);
    supervisor_.OnTimer(Now());
  }
  table_.KillDescendants(kLeftoverTimeoutMs);
  if (!supervisor_.failure().empty()) spdlog::error("{}", supervisor_.failure());
  return *supervisor_.exit_code();
}

void Node::OnSignals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) {
      supervisor_.OnStopSignal(static_cast<int>(info.ssi_signo), Now());
      continue;
    }
    while (std::optional<PosixProcessTable::Ended> ended = table_.Reap()) {
      supervisor_.OnExit(ended->index, ended->exit, Now());
    }
  }
}

void Node::OnReadable(size_t index) {
  int fd = table_.ready_fd(index);
  loop_.Remove(fd);
  bool ready = table_.ReadReady(index);
  if (ready && supervisor_.OnReady(index, Now())) PrintReady();
}

void Node::PrintReady() {
  double seconds = static_cast<double>(MonotonicNs() - spec_.started_ns) / 1e9;
  std::string line =
      fmt::format("ready: {} pid={} in {:.1f} s",
                  ReplaceAddress(spec_.ready_text, listener_.address), getpid(), seconds);
  if (spec_.log_format == "json") {
    spdlog::info("{}", line);
  } else {
    fmt::print(stderr, "{}\n", line);
  }
}

std::string Node::ProcessesJson() const {
  Json processes = Json::array();
  for (size_t i = 0; i < spec_.processes.size(); ++i) {
    const ProcessStatus& status = supervisor_.statuses()[i];
    processes.push_back({{"name", spec_.processes[i].name},
                         {"pid", status.pid},
                         {"state", ProcessStateName(status.state)},
                         {"restarts", status.restarts},
                         {"incarnation", status.incarnation},
                         {"last_exit", status.last_exit}});
  }
  return DumpJson({{"pid", getpid()},
                   {"phase", supervisor_.phase_name()},
                   {"address", listener_.address},
                   {"processes", std::move(processes)}});
}

absl::Status Node::KillProcess(const std::string& name) {
  for (size_t i = 0; i < spec_.processes.size(); ++i) {
    if (spec_.processes[i].name != name ||
        supervisor_.statuses()[i].state != ProcessState::kRunning)
      continue;
    spdlog::warn("{} is killed on request", name);
    table_.Signal(i, SIGKILL);
    return absl::OkStatus();
  }
  return NotFound("process {}: none of that name runs", name);
}

}  // namespace

int RunNode(const NodeSpec& spec, const std::string& runtime_dir) {
  ListenSocket listener;
  if (!spec.listen_host.empty()) {
    absl::StatusOr<ListenSocket> opened = OpenListenSocket(spec.listen_host, spec.listen_port);
    if (!opened.ok()) {
      spdlog::error("{}", Message(opened.status()));
      return kExitPort;
    }
    listener = std::move(*opened);
  }
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  absl::StatusOr<UniqueFd> signals = SignalsAsDescriptor();
  if (!signals.ok()) {
    spdlog::error("{}", Message(signals.status()));
    return kExitFailure;
  }
  return Node(spec, std::move(*signals), std::move(listener))
      .Run(runtime_dir + "/" + kNodeSocketName);
}

}  // namespace kt
