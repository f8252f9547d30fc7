// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_IPC_SEGMENT_H_
#define KT_COMMON_IPC_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/ipc/pages.h"

namespace kt {

// Shared memory as a memfd: no name in any file system, gone with its last holder. Size-sealed, so
// that no peer can truncate it under a reader. Movable; unmaps and closes when destroyed. The
// mapping is shared, writable unless asked otherwise, and aligned to huge pages where it is as
// large.
class Segment {
 public:
  Segment() = default;
  ~Segment();
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;

  // Small pages, all there, so that exhaustion is an error here and never SIGBUS later.
  // ResourceExhausted: no memory for it, with the bytes asked for. `bytes` is rounded up to whole
  // pages.
  static absl::StatusOr<Segment> Create(const std::string& name, size_t bytes);
  // For large memory whose owner decides where its pages come from: binds the range, then populates
  // all of it before use. `bytes` is rounded up to whole pages of this kind. ResourceExhausted also
  // where fewer hugetlb pages are free than asked for.
  static absl::StatusOr<Segment> Reserve(const std::string& name, size_t bytes, PageKind kind);
  // Takes over `fd` (closed on error too). FailedPrecondition: not size-sealed; InvalidArgument:
  // smaller than bytes_min. With kRead a write to it ends the process.
  static absl::StatusOr<Segment> FromFd(int fd, size_t bytes_min,
                                        MapAccess access = MapAccess::kReadWrite);

  // Allocates pages [begin, begin + bytes), which are multiples of 2 MiB or the segment's ends.
  // Threads: any, for ranges that do not overlap. ResourceExhausted: no memory for them.
  absl::Status Populate(size_t begin, size_t bytes, PageKind kind);

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_; }

 private:
  Segment(int fd, uint8_t* data, size_t size) : fd_(fd), data_(data), size_(size) {}
  static absl::StatusOr<Segment> Map(int fd, size_t bytes, MapAccess access);

  int fd_ = -1;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kt

#endif  // KT_COMMON_IPC_SEGMENT_H_
