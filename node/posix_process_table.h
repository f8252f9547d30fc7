// SPDX-License-Identifier: Apache-2.0
#ifndef KT_NODE_POSIX_PROCESS_TABLE_H_
#define KT_NODE_POSIX_PROCESS_TABLE_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ipc/unique_fd.h"
#include "node/spec.h"
#include "node/supervisor.h"

namespace kt {

// Real processes: forked children, each in a process group of its own (a terminal's Ctrl-C reaches
// only the node), with standard input from /dev/null and standard output on the node's standard
// error. The kernel kills them when the node dies. Environment of a child: the node's, the spec's,
// and KT_INCARNATION, KT_ERROR_FD, and KT_READY_FD, KT_HTTP_FD where the spec says so. Threads: the
// main thread only, for a parent-death signal is tied to the thread that forked.
class PosixProcessTable : public ProcessTable {
 public:
  // `specs` and the descriptor outlive it. `argv_prefix` is put before every argv (an emulator;
  // KT_EXEC_PREFIX).
  PosixProcessTable(const std::vector<ProcessSpec>& specs, int listen_fd,
                    std::vector<std::string> argv_prefix);

  absl::StatusOr<Started> Start(size_t index) override;
  void Signal(size_t index, int signal) override;

  struct Ended {
    size_t index;
    ProcessExit exit;
  };
  // Reaps one ended child after killing what is left of its group; grandchildren that came to us
  // are reaped on the way. nullopt: no child has ended.
  std::optional<Ended> Reap();
  // Readable end of the readiness pipe of a process that reports it; -1: none.
  int ready_fd(size_t index) const { return children_[index].ready.get(); }
  // Reads what has come through it. True: "READY" has; the pipe is closed then and at its end.
  bool ReadReady(size_t index);
  // SIGKILL to every descendant that is left, however it has escaped its group; waits for them,
  // timeout_ms at most.
  void KillDescendants(int timeout_ms);

 private:
  struct Child {
    pid_t pid = 0;
    UniqueFd ready;
    UniqueFd error;
  };

  const std::vector<ProcessSpec>& specs_;
  const int listen_fd_;
  const std::vector<std::string> argv_prefix_;
  std::vector<Child> children_;
};

}  // namespace kt

#endif  // KT_NODE_POSIX_PROCESS_TABLE_H_
