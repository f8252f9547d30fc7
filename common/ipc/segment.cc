// SPDX-License-Identifier: Apache-2.0
#include "common/ipc/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/status.h"

namespace kt {
namespace {
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
}  // namespace

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

absl::StatusOr<Segment> Segment::Create(const std::string& name, size_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0)
    return ResourceExhausted("segment {}: memfd_create failed: {}", name, strerror(errno));
  if (int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes)); error != 0) {
    close(fd);
    return ResourceExhausted(
        "segment {}: no memory for {} bytes ({}); lower what the message's name stands for or free "
        "memory",
        name, bytes, strerror(error));
  }
  if (fcntl(fd, F_ADD_SEALS, kSizeSeals) != 0) {
    int error = errno;
    close(fd);
    return Internal("segment {}: cannot be sealed: {}", name, strerror(error));
  }
  return Map(fd, bytes);
}

absl::StatusOr<Segment> Segment::FromFd(int fd, size_t bytes_min) {
  struct stat st {};
  int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &st) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    close(fd);
    return FailedPrecondition("segment: descriptor is not a size-sealed memfd");
  }
  if (static_cast<size_t>(st.st_size) < bytes_min) {
    close(fd);
    return InvalidArgument("segment: has {} bytes, at least {} expected", st.st_size, bytes_min);
  }
  return Map(fd, static_cast<size_t>(st.st_size));
}

absl::StatusOr<Segment> Segment::Map(int fd, size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) {
    int error = errno;
    close(fd);
    return ResourceExhausted("segment: mapping {} bytes failed: {}", bytes, strerror(error));
  }
  if (bytes >= kHugePage) madvise(p, bytes, MADV_HUGEPAGE);
  return Segment(fd, static_cast<uint8_t*>(p), bytes);
}

}  // namespace kt
