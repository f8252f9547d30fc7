// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_IPC_UNIQUE_FD_H_
#define KT_COMMON_IPC_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace kt {

// Owns one file descriptor and closes it. -1: none.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  ~UniqueFd() {
    if (fd_ >= 0) close(fd_);
  }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset() { UniqueFd().swap(*this); }

 private:
  void swap(UniqueFd& other) { std::swap(fd_, other.fd_); }
  int fd_;
};

}  // namespace kt

#endif  // KT_COMMON_IPC_UNIQUE_FD_H_
