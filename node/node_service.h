// SPDX-License-Identifier: Apache-2.0
#ifndef KT_NODE_NODE_SERVICE_H_
#define KT_NODE_NODE_SERVICE_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ipc/fd_passing.h"
#include "common/ipc/node_protocol.h"
#include "node/event_loop.h"
#include "node/segment_store.h"

namespace kt {

// Answers NodeClient on a Unix socket. Peers of another user are refused; a packet that is no
// request closes its connection; what a client has given is let go with its connection; a client
// that does not read its replies loses them: nothing here waits. Threads: the loop's.
class NodeService {
 public:
  struct Hooks {
    std::function<std::string()> processes_json;
    std::function<absl::Status(const std::string&)> kill_process;
  };

  // All outlive it.
  NodeService(EventLoop* loop, SegmentStore* segments, Hooks hooks);
  ~NodeService();
  absl::Status Listen(const std::string& path);

 private:
  struct Answer {
    absl::Status status;
    uint64_t bytes = 0;
    std::string text;
    int fd = -1;
  };

  struct Connection {
    UniqueFd socket;
    std::vector<std::string> given;  // segments, let go with it
  };

  void Accept();
  void Serve(int connection);
  void Close(int connection);
  Answer Execute(const NodeRequest& request, UniqueFd fd, Connection& connection);

  EventLoop* const loop_;
  SegmentStore* const segments_;
  const Hooks hooks_;
  UniqueFd listener_;
  std::map<int, Connection> connections_;
};

}  // namespace kt

#endif  // KT_NODE_NODE_SERVICE_H_
