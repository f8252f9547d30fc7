// SPDX-License-Identifier: Apache-2.0
#include "coordinator/template/template_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace kt {
namespace {

constexpr absl::Duration kStartLimit =
    absl::Seconds(30);  // python3 and jinja2 have to be read from disk
constexpr size_t kAnswerBytesMax = size_t{64} << 20;
constexpr int kExitOutOfMemory = 3;      // kt_template.py
constexpr int kExitCannotExecute = 127;  // here, between fork and exec

std::string DefaultHelperPath() {
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "kt-template")
      .string();
}

// Runs in the child of a process with threads: nothing but system calls.
[[noreturn]] void ExecuteHelper(int socket, pid_t parent, char* const* argv,
                                char* const* environment) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() == parent && dup2(socket, STDIN_FILENO) >= 0 && dup2(socket, STDOUT_FILENO) >= 0 &&
      chdir("/") == 0) {
    close_range(3, ~0u, 0);
    execve(argv[0], argv, environment);
  }
  _exit(kExitCannotExecute);
}

std::string Frame(std::string_view payload) {
  std::string frame;
  for (int shift = 0; shift < 32; shift += 8)
    frame.push_back(static_cast<char>(payload.size() >> shift & 0xFF));
  return frame.append(payload);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PromptRenderer>> TemplateProcess::Create(
    const TemplateOptions& options) {
  TemplateOptions complete = options;
  if (complete.helper_path.empty()) complete.helper_path = DefaultHelperPath();
  std::unique_ptr<TemplateProcess> process(new TemplateProcess(complete));
  KT_RETURN_IF_ERROR(process->Start());
  return process;
}

TemplateProcess::~TemplateProcess() { Stop(); }

absl::StatusOr<std::string> TemplateProcess::Render(const Json& variables) {
  absl::Duration limit = absl::Milliseconds(options_.time_limit_ms);
  auto idle = [](bool* busy) { return !*busy; };
  bool my_turn = mutex_.LockWhenWithTimeout(absl::Condition(+idle, &busy_), limit);
  if (my_turn) busy_ = true;
  mutex_.Unlock();
  if (!my_turn)
    return DeadlineExceeded("chat template: waited {} ms for other renderings",
                            options_.time_limit_ms);
  auto text = RenderNow(variables);
  absl::MutexLock lock(&mutex_);
  busy_ = false;
  return text;
}

absl::StatusOr<std::string> TemplateProcess::RenderNow(const Json& variables) {
  if (HasEnded()) {
    Stop();
    KT_RETURN_IF_ERROR(Start());
  }
  return Exchange(variables, absl::Milliseconds(options_.time_limit_ms));
}

absl::Status TemplateProcess::Start() {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    return Unavailable("chat template: no socket for {}: {}", options_.helper_path,
                       strerror(errno));
  }
  std::string path = options_.helper_path,
              memory_limit = std::to_string(options_.memory_limit_bytes);
  std::string locale = "LC_ALL=C.UTF-8", zone = "TZ=";
  const char* own_zone = getenv("TZ");
  if (own_zone != nullptr) zone += own_zone;
  char* argv[] = {path.data(), memory_limit.data(), nullptr};
  char* environment[] = {locale.data(), own_zone != nullptr ? zone.data() : nullptr, nullptr};
  pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) ExecuteHelper(sockets[1], parent, argv, environment);
  int fork_error = errno;
  close(sockets[1]);
  socket_ = sockets[0];
  if (pid_ < 0) {
    Stop();
    return Unavailable("chat template: {} cannot be started: {}", path, strerror(fork_error));
  }
  fcntl(socket_, F_SETFL, O_NONBLOCK);

  Json globals = Json::object();
  if (!options_.bos_token.empty()) globals["bos_token"] = options_.bos_token;
  if (!options_.eos_token.empty()) globals["eos_token"] = options_.eos_token;
  absl::Status status =
      Exchange({{"template", options_.template_text}, {"globals", globals}}, kStartLimit).status();
  if (!status.ok()) Stop();
  return status;
}

absl::StatusOr<std::string> TemplateProcess::Exchange(const Json& request, absl::Duration limit) {
  absl::Time deadline = absl::Now() + limit;
  auto exchange = [&]() -> absl::StatusOr<std::string> {
    KT_RETURN_IF_ERROR(Send(Frame(DumpJson(request)), deadline));
    KT_ASSIGN_OR_RETURN(std::string header, Receive(4, deadline));
    size_t bytes = 0;
    for (int i = 3; i >= 0; --i)
      bytes = bytes << 8 | static_cast<uint8_t>(header[static_cast<size_t>(i)]);
    if (bytes == 0 || bytes > kAnswerBytesMax) {
      return ResourceExhausted("chat template: its text has {} bytes, more than the {} allowed",
                               bytes, kAnswerBytesMax);
    }
    return Receive(bytes, deadline);
  };
  auto answer = exchange();
  if (!answer.ok()) {
    Stop();
    if (absl::IsDeadlineExceeded(answer.status())) {
      return DeadlineExceeded("chat template: took longer than {} ms",
                              absl::ToInt64Milliseconds(limit));
    }
    return answer;
  }
  std::string text = answer->substr(1);
  if (answer->front() == '-') return InvalidArgument("chat template: {}", text);
  return text;
}

absl::Status TemplateProcess::WaitForSocket(short events, absl::Time deadline) {
  pollfd poll_socket = {socket_, events, 0};
  while (true) {
    int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left_ms <= 0) return DeadlineExceeded("no answer");
    int ready = poll(&poll_socket, 1, static_cast<int>(std::min<int64_t>(left_ms, 60'000)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return Unavailable("chat template: poll: {}", strerror(errno));
  }
}

absl::Status TemplateProcess::Send(std::string_view data, absl::Time deadline) {
  while (!data.empty()) {
    ssize_t sent = send(socket_, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      data.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      KT_RETURN_IF_ERROR(WaitForSocket(POLLOUT, deadline));
    } else if (errno != EINTR) {
      return HelperEnded();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TemplateProcess::Receive(size_t bytes, absl::Time deadline) {
  std::string data(bytes, '\0');
  for (size_t have = 0; have < bytes;) {
    ssize_t got = recv(socket_, data.data() + have, bytes - have, 0);
    if (got > 0) {
      have += static_cast<size_t>(got);
    } else if (got < 0 && errno == EAGAIN) {
      KT_RETURN_IF_ERROR(WaitForSocket(POLLIN, deadline));
    } else if (got == 0 || errno != EINTR) {
      return HelperEnded();
    }
  }
  return data;
}

absl::Status TemplateProcess::HelperEnded() {
  int status = Stop();
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExitOutOfMemory) {
    return ResourceExhausted("chat template: needs more than the {} MiB of memory allowed",
                             options_.memory_limit_bytes >> 20);
  }
  if (WIFEXITED(status)) {
    return Unavailable(
        "chat template: {} ended with exit code {}; it needs /usr/bin/python3 with jinja2 (Debian: "
        "python3-jinja2)",
        options_.helper_path, WEXITSTATUS(status));
  }
  if (WTERMSIG(status) == SIGKILL)
    return ResourceExhausted("chat template: {} was killed; is the machine out of memory?",
                             options_.helper_path);
  return InvalidArgument("chat template: crashes its interpreter (signal {})", WTERMSIG(status));
}

bool TemplateProcess::HasEnded() {
  if (pid_ <= 0) return true;
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid != 0;
}

int TemplateProcess::Stop() {
  int status = 0;
  if (pid_ > 0) {
    kill(pid_, SIGKILL);  // The exit status of a helper that is ending by itself stays what it is.
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  if (socket_ >= 0) close(socket_);
  pid_ = socket_ = -1;
  return status;
}

}  // namespace kt
