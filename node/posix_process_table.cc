// SPDX-License-Identifier: Apache-2.0
#include "node/posix_process_table.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <string_view>
#include <utility>

#include "common/base/exit_code.h"
#include "common/base/status.h"

extern char** environ;

namespace kt {
namespace {

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return Internal("pipe: {}", strerror(errno));
  Pipe pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
  fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

uint64_t RealtimeNs() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

std::vector<std::string> Environment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view text = *entry;
    if (added.find(std::string(text.substr(0, text.find('=')))) == added.end())
      environment.emplace_back(text);
  }
  for (const auto& [key, value] : added) environment.push_back(key + "=" + value);
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

// After fork: only system calls until exec. `inherited` lose close-on-exec.
[[noreturn]] void Exec(pid_t node, char* const* argv, char* const* environment,
                       const std::vector<int>& inherited, int error_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != node) _exit(kExitFailure);  // the node died before prctl
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (int null = open("/dev/null", O_RDONLY); null >= 0) dup2(null, STDIN_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  for (int fd : inherited) fcntl(fd, F_SETFD, 0);
  execvpe(argv[0], argv, environment);
  const char* reason = strerror(errno);
  for (const char* part : {"cannot start ", static_cast<const char*>(argv[0]), ": ", reason}) {
    [[maybe_unused]] ssize_t written = write(error_fd, part, strlen(part));
  }
  _exit(kExitFailure);
}

std::string ReadLastError(int fd) {
  char buffer[4096];
  ssize_t count = fd < 0 ? 0 : read(fd, buffer, sizeof(buffer));
  std::string text(buffer, static_cast<size_t>(std::max<ssize_t>(count, 0)));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

ProcessExit ExitOf(int wait_status) {
  if (WIFSIGNALED(wait_status)) return {0, WTERMSIG(wait_status), ""};
  return {WEXITSTATUS(wait_status), 0, ""};
}

}  // namespace

PosixProcessTable::PosixProcessTable(const std::vector<ProcessSpec>& specs, int listen_fd,
                                     std::vector<std::string> argv_prefix)
    : specs_(specs),
      listen_fd_(listen_fd),
      argv_prefix_(std::move(argv_prefix)),
      children_(specs.size()) {}

absl::StatusOr<ProcessTable::Started> PosixProcessTable::Start(size_t index) {
  const ProcessSpec& spec = specs_[index];
  KT_ASSIGN_OR_RETURN(Pipe error, MakePipe());
  KT_ASSIGN_OR_RETURN(Pipe ready, MakePipe());
  uint64_t incarnation = RealtimeNs();

  std::map<std::string, std::string> added = spec.env;
  std::vector<int> inherited{error.write.get()};
  added["KT_INCARNATION"] = std::to_string(incarnation);
  added["KT_ERROR_FD"] = std::to_string(error.write.get());
  if (spec.reports_ready) {
    added["KT_READY_FD"] = std::to_string(ready.write.get());
    inherited.push_back(ready.write.get());
  }
  if (spec.inherits_listener) {
    added["KT_HTTP_FD"] = std::to_string(listen_fd_);
    inherited.push_back(listen_fd_);
  }
  std::vector<std::string> argv = argv_prefix_;
  argv.insert(argv.end(), spec.argv.begin(), spec.argv.end());
  std::vector<std::string> environment = Environment(added);
  std::vector<char*> argv_pointers = Pointers(argv);
  std::vector<char*> environment_pointers = Pointers(environment);

  pid_t node = getpid();
  pid_t pid = fork();
  if (pid < 0) return ResourceExhausted("{}: fork: {}", spec.name, strerror(errno));
  if (pid == 0)
    Exec(node, argv_pointers.data(), environment_pointers.data(), inherited, error.write.get());
  setpgid(pid, pid);  // here too: whoever comes first
  children_[index] =
      Child{pid, spec.reports_ready ? std::move(ready.read) : UniqueFd(), std::move(error.read)};
  return Started{pid, incarnation};
}

void PosixProcessTable::Signal(size_t index, int signal) {
  pid_t pid = children_[index].pid;
  if (pid > 0) kill(signal == SIGKILL ? -pid : pid, signal);
}

std::optional<PosixProcessTable::Ended> PosixProcessTable::Reap() {
  while (true) {
    siginfo_t info{};
    // Looks without reaping: until then the process id names its group for certain.
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
      return std::nullopt;
    auto child = std::find_if(children_.begin(), children_.end(),
                              [&](const Child& c) { return c.pid == info.si_pid; });
    if (child != children_.end()) kill(-info.si_pid, SIGKILL);
    int status = 0;
    waitpid(info.si_pid, &status, 0);
    if (child == children_.end()) continue;
    ProcessExit exit = ExitOf(status);
    exit.last_error = ReadLastError(child->error.get());
    child->pid = 0;
    return Ended{static_cast<size_t>(child - children_.begin()), exit};
  }
}

bool PosixProcessTable::ReadReady(size_t index) {
  char buffer[64];
  UniqueFd& fd = children_[index].ready;
  ssize_t count = read(fd.get(), buffer, sizeof(buffer));
  if (count < 0) return false;
  bool ready = std::string_view(buffer, static_cast<size_t>(count)).substr(0, 6) == "READY\n";
  if (ready || count == 0) fd.Reset();
  return ready;
}

void PosixProcessTable::KillDescendants(int timeout_ms) {
  constexpr int kPauseMs = 5;
  for (int waited_ms = 0; waited_ms <= timeout_ms; waited_ms += kPauseMs) {
    std::ifstream children(fmt::format("/proc/self/task/{}/children", getpid()));
    pid_t pid;
    while (children >> pid) kill(pid, SIGKILL);
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (waitpid(-1, nullptr, WNOHANG) < 0) return;  // ECHILD: none is left
    poll(nullptr, 0, kPauseMs);
  }
}

}  // namespace kt
