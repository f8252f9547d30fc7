// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "cli/doctor_checks.h"
#include "common/base/status.h"
#include "common/ipc/unique_fd.h"
#include "common/topology/system_file.h"
#include "node/listen_socket.h"

namespace kt::cli {
namespace {

namespace fs = std::filesystem;
using topology::ReadSystemFile;
using topology::Split;
using topology::Trim;

void CheckKernel(Findings& findings) {
  utsname name{};
  uname(&name);
  const UniqueFd self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  findings.push_back({self.valid() ? Level::kOk : Level::kFail, "kernel",
                      fmt::format("{} {}{}", name.sysname, name.release,
                                  self.valid() ? "" : ", pidfd_open does not work"),
                      self.valid() ? ""
                                   : "processes are watched through pidfds: use Linux 5.3 or "
                                     "later, or allow pidfd_open in the sandbox"});
}

void CheckOpenFiles(Findings& findings) {
  constexpr rlim_t kEnough = 8192;  // 4096 connections of clients and what the processes need
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const bool few = files.rlim_cur < kEnough;
  findings.push_back(
      {few ? Level::kWarn : Level::kOk, "open files", fmt::format("limit {}", files.rlim_cur),
       few ? fmt::format("ulimit -n {} (LimitNOFILE in a unit): every client connection takes one",
                         kEnough)
           : "",
       !few});
}

// Inode of the listening socket on a port, from /proc/net/tcp{,6}: "sl local:port remote:port state
// ... inode"; empty: none.
std::string ListenerInode(const std::string& root, int port) {
  const std::string wanted = fmt::format(":{:04X}", port);
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const std::string& line : Split(ReadSystemFile(root + table).value_or(""), '\n')) {
      const auto fields = Split(line, ' ');
      if (fields.size() > 9 && fields[1].ends_with(wanted) && fields[3] == "0A") return fields[9];
    }
  }
  return "";
}

struct Owner {
  std::string pid;
  std::string name;
};

// The process that has the socket open; empty where it belongs to another user.
Owner FindOwner(const std::string& root, const std::string& inode) {
  const std::string link = "socket:[" + inode + "]";
  std::error_code error;
  for (fs::directory_iterator process(root + "/proc", error), end; !error && process != end;
       process.increment(error)) {
    const std::string pid = process->path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code denied;
    for (fs::directory_iterator fd(process->path() / "fd", denied); !denied && fd != end;
         fd.increment(denied)) {
      std::error_code gone;
      if (fs::read_symlink(fd->path(), gone) == link) {
        return {pid, std::string(Trim(ReadSystemFile(process->path() / "comm").value_or("")))};
      }
    }
  }
  return {};
}

void CheckPort(const DoctorOptions& options, Findings& findings) {
  const std::string subject = fmt::format("port {}", options.port);
  const auto socket = OpenListenSocket(options.host, options.port);
  if (socket.ok()) {
    findings.push_back({Level::kOk, subject, fmt::format("free on {}", options.host)});
    return;
  }
  const std::string inode = ListenerInode(options.root, options.port);
  if (inode.empty()) {
    findings.push_back(
        {Level::kFail, subject, Message(socket.status()), "choose another --host or --port"});
    return;
  }
  const Owner owner = FindOwner(options.root, inode);
  if (owner.name.starts_with("kt-")) {
    findings.push_back({Level::kOk, subject,
                        fmt::format("a server of this kind is running on it ({}, process {})",
                                    owner.name, owner.pid)});
    return;
  }
  findings.push_back({Level::kFail, subject,
                      owner.pid.empty()
                          ? "in use by another user's process"
                          : fmt::format("in use by {} (process {})", owner.name, owner.pid),
                      "end that process or choose another --port"});
}

void CheckDisk(const DoctorOptions& options, Findings& findings) {
  constexpr double kScarce = 5.0 * (1 << 30);
  std::error_code error;
  const fs::path place =
      options.model_dir.empty() ? fs::current_path(error) : fs::path(options.model_dir);
  const fs::space_info space = fs::space(place, error);
  if (error) return;  // a directory that is not there is reported with the model
  const double available = static_cast<double>(space.available);
  findings.push_back({available < kScarce ? Level::kWarn : Level::kOk, "disk",
                      fmt::format("{} free of {} at {}", Size(available),
                                  Size(static_cast<double>(space.capacity)), place.string()),
                      available < kScarce ? "make room before fetching or converting models" : ""});
}

// Chat templates are rendered by Jinja2 in the system's Python.
void CheckTemplates(Findings& findings) {
  std::string output;
  if (FILE* python = popen("/usr/bin/python3 -I -c 'import sys, jinja2; "
                           "print(sys.version.split()[0], jinja2.__version__)' 2>/dev/null",
                           "r")) {
    char text[128];
    while (fgets(text, sizeof(text), python) != nullptr) output += text;
    pclose(python);
  }
  const auto versions = Split(Trim(output), ' ');
  if (versions.size() == 2) {
    findings.push_back({Level::kOk, "chat templates",
                        fmt::format("Python {}, Jinja2 {}", versions[0], versions[1])});
  } else {
    findings.push_back({Level::kFail, "chat templates",
                        "/usr/bin/python3 with the module jinja2 is not there",
                        "apt-get install python3-jinja2: /v1/chat/completions needs it"});
  }
}

}  // namespace

void CheckSystem(const DoctorOptions& options, Findings& findings) {
  CheckKernel(findings);
  CheckOpenFiles(findings);
  CheckPort(options, findings);
  CheckDisk(options, findings);
  CheckTemplates(findings);
}

}  // namespace kt::cli
