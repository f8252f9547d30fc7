// SPDX-License-Identifier: Apache-2.0
#ifndef KT_NODE_EVENT_LOOP_H_
#define KT_NODE_EVENT_LOOP_H_

#include <functional>
#include <map>

#include "common/ipc/unique_fd.h"

namespace kt {

// Calls a function whenever its descriptor is readable or closed by the other end (epoll,
// level-triggered). Threads: one.
class EventLoop {
 public:
  EventLoop();

  // `fd` stays the caller's and must be removed before it is closed.
  void Watch(int fd, std::function<void()> on_readable);
  void Remove(int fd);
  // Waits for events, timeout_ms at most (-1: for ever), and serves them. Returns early on a
  // signal.
  void RunOnce(int timeout_ms);

 private:
  UniqueFd epoll_;
  std::map<int, std::function<void()>> handlers_;
};

}  // namespace kt

#endif  // KT_NODE_EVENT_LOOP_H_
