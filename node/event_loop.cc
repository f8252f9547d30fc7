// SPDX-License-Identifier: Apache-2.0
#include "node/event_loop.h"

#include <sys/epoll.h>

#include <array>
#include <utility>

namespace kt {

EventLoop::EventLoop() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

void EventLoop::Watch(int fd, std::function<void()> on_readable) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  handlers_[fd] = std::move(on_readable);
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void EventLoop::Remove(int fd) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  handlers_.erase(fd);
}

void EventLoop::RunOnce(int timeout_ms) {
  std::array<epoll_event, 64> events;
  int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  for (int i = 0; i < count; ++i) {
    auto found = handlers_.find(events[i].data.fd);
    if (found == handlers_.end()) continue;  // removed by a handler that ran just before
    auto handler = found->second;            // a copy: it may remove itself
    handler();
  }
}

}  // namespace kt
