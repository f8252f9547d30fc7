// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_IPC_NODE_CLIENT_H_
#define KT_COMMON_IPC_NODE_CLIENT_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ipc/node_protocol.h"
#include "common/ipc/segment.h"
#include "common/ipc/unique_fd.h"

namespace kt {

// A process's connection to the kt-node of its machine, which holds memory segments across restarts
// of their users. Calls block for one round trip, 10 s at most. Threads: one at a time.
class NodeClient {
 public:
  // Unavailable: no node listens at socket_path (runtime_dir/node.sock).
  static absl::StatusOr<NodeClient> Connect(const std::string& socket_path);

  // Maps the segment `name`, created by its first user. `bytes` (rounded up to whole pages) must be
  // the same for all its users: FailedPrecondition otherwise. The pages are allocated here, so they
  // are charged to this process's cgroup and follow its NUMA policy. ResourceExhausted: no memory
  // for it.
  absl::StatusOr<Segment> GetSegment(const std::string& name, size_t bytes);
  // Gives the node a segment of this process, under a name that is free, for others to open. The
  // node lets go of it when this connection ends. AlreadyExists: the name is taken.
  absl::Status PutSegment(const std::string& name, const Segment& segment);
  // Maps a segment that there is, for reading only. NotFound: there is none, or its owner has gone.
  absl::StatusOr<Segment> OpenSegment(const std::string& name);
  // The node lets go of `name`; existing mappings stay valid. NotFound: there is none.
  absl::Status DropSegment(const std::string& name);
  // {"segments": [{"name", "bytes"}]}
  absl::StatusOr<std::string> SegmentsJson();
  // {"pid", "phase", "address", "processes": [{"name", "pid", "state", "restarts", "incarnation",
  // "last_exit"}]}; phase: starting, serving, degraded or stopping; state: running, waiting (for
  // its restart), degraded (not restarted any more) or stopped.
  absl::StatusOr<std::string> ProcessesJson();
  // SIGKILL for a process that hangs; it is restarted as after any death. NotFound: no such process
  // runs.
  absl::Status KillProcess(const std::string& name);

 private:
  explicit NodeClient(UniqueFd socket) : socket_(std::move(socket)) {}
  struct Reply {
    size_t bytes;
    std::string text;
    UniqueFd fd;
  };
  absl::StatusOr<Reply> Call(NodeOp op, const std::string& name, size_t bytes, int fd = -1);

  UniqueFd socket_;
};

}  // namespace kt

#endif  // KT_COMMON_IPC_NODE_CLIENT_H_
