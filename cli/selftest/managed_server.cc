// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/managed_server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>

#include "cli/launch.h"
#include "common/base/exit_code.h"
#include "common/base/status.h"

namespace kt::cli {
namespace {

constexpr size_t kLinesKept = 5;

// Copies what comes to stderr if asked to, until the writers have closed.
void Drain(FILE* log, bool show) {
  char* line = nullptr;
  size_t room = 0;
  while (getline(&line, &room, log) >= 0) {
    if (show) std::fputs(line, stderr);
  }
  free(line);
  std::fclose(log);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ManagedServer>> ManagedServer::Start(proto::RuntimeConfig config,
                                                                    bool show_log, int* exit_code) {
  *exit_code = kExitFailure;
  config.mutable_server()->set_host("127.0.0.1");
  config.mutable_server()->set_port(0);
  config.mutable_server()->set_grpc_port(0);
  KT_ASSIGN_OR_RETURN(Launch launch, PrepareLaunch(std::move(config), MonotonicNs()));
  int log[2];
  if (pipe2(log, O_CLOEXEC) != 0)
    return ResourceExhausted("start: no pipe for the server's log: {}", strerror(errno));
  std::unique_ptr<ManagedServer> server(new ManagedServer);
  server->runtime_dir_ = launch.runtime_dir;
  server->pid_ = fork();
  if (server->pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(log[1], STDERR_FILENO);
    absl::Status failed = ExecNode(launch);
    std::fprintf(stderr, "%s\n", Message(failed).c_str());
    _exit(kExitFailure);
  }
  close(log[1]);
  if (server->pid_ < 0) {
    close(log[0]);
    return ResourceExhausted("start: no process for the server: {}", strerror(errno));
  }
  std::string last_lines;
  if (server->WaitReady(log[0], show_log, &last_lines)) return server;
  int state = 0;
  waitpid(server->pid_, &state, 0);
  server->pid_ = -1;
  if (WIFEXITED(state) && WEXITSTATUS(state) != 0) *exit_code = WEXITSTATUS(state);
  return Unavailable("the server did not start:\n{}", last_lines);
}

bool ManagedServer::WaitReady(int fd, bool show_log, std::string* last_lines) {
  FILE* log = fdopen(fd, "r");
  std::deque<std::string> kept;
  char* line = nullptr;
  size_t room = 0;
  bool ready = false;
  while (!ready && getline(&line, &room, log) >= 0) {
    if (show_log) std::fputs(line, stderr);
    ready = std::strncmp(line, "ready:", 6) == 0;
    kept.emplace_back(line);
    if (kept.size() > kLinesKept) kept.pop_front();
  }
  free(line);
  for (const std::string& l : kept) *last_lines += l;
  if (ready) {
    log_reader_ = std::thread(Drain, log, show_log);
  } else {
    std::fclose(log);
  }
  return ready;
}

ManagedServer::~ManagedServer() {
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
  if (log_reader_.joinable()) log_reader_.join();
}

}  // namespace kt::cli
