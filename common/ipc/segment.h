// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_IPC_SEGMENT_H_
#define KT_COMMON_IPC_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace kt {

// Shared memory as a memfd: no name in any file system, gone with its last holder. Allocated in
// full before it is mapped, so that exhaustion is an error here and never SIGBUS later;
// size-sealed, so that no peer can truncate it under a reader. Movable; unmaps and closes when
// destroyed. The mapping is shared and writable.
class Segment {
 public:
  Segment() = default;
  ~Segment();
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;

  // ResourceExhausted: no memory for it, with the bytes asked for. `bytes` is rounded up to whole
  // pages.
  static absl::StatusOr<Segment> Create(const std::string& name, size_t bytes);
  // Takes over `fd` (closed on error too). FailedPrecondition: not size-sealed; InvalidArgument:
  // smaller than bytes_min.
  static absl::StatusOr<Segment> FromFd(int fd, size_t bytes_min);

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_; }

 private:
  Segment(int fd, uint8_t* data, size_t size) : fd_(fd), data_(data), size_(size) {}
  static absl::StatusOr<Segment> Map(int fd, size_t bytes);

  int fd_ = -1;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kt

#endif  // KT_COMMON_IPC_SEGMENT_H_
