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
constexpr unsigned kHugetlb2Mb = 21u << 26;  // MFD_HUGE_2MB
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
  KT_ASSIGN_OR_RETURN(Segment segment, Reserve(name, bytes, PageKind::kSmall));
  if (absl::Status s = segment.Populate(0, segment.size(), PageKind::kSmall); !s.ok())
    return ResourceExhausted("segment {}: {}", name, Message(s));
  return segment;
}

absl::StatusOr<Segment> Segment::Reserve(const std::string& name, size_t bytes, PageKind kind) {
  const bool hugetlb = kind == PageKind::kHugetlb;
  bytes = RoundUp(bytes, kind == PageKind::kSmall ? kSmallPage : kHugePage);
  int fd = memfd_create(
      name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | (hugetlb ? MFD_HUGETLB | kHugetlb2Mb : 0));
  if (fd < 0)
    return ResourceExhausted("segment {}: memfd_create failed: {}", name, strerror(errno));
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 || fcntl(fd, F_ADD_SEALS, kSizeSeals) != 0) {
    int error = errno;
    close(fd);
    return Internal("segment {}: {} bytes cannot be sealed: {}", name, bytes, strerror(error));
  }
  return Map(fd, bytes, MapAccess::kReadWrite);
}

absl::Status Segment::Populate(size_t begin, size_t bytes, PageKind kind) {
  PopulatePages(data_ + begin, bytes, kind);
  // Allocates what is not there yet and is the only one to say whether there is memory.
  int error = posix_fallocate(fd_, static_cast<off_t>(begin), static_cast<off_t>(bytes));
  if (error != 0) {
    return ResourceExhausted("no memory for {} bytes ({}); free memory or ask for less", bytes,
                             strerror(error));
  }
  return absl::OkStatus();
}

absl::StatusOr<Segment> Segment::FromFd(int fd, size_t bytes_min, MapAccess access) {
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
  return Map(fd, static_cast<size_t>(st.st_size), access);
}

absl::StatusOr<Segment> Segment::Map(int fd, size_t bytes, MapAccess access) {
  uint8_t* data = MapMemory(fd, bytes, access);
  if (data == nullptr) {
    int error = errno;
    close(fd);
    return ResourceExhausted("segment: mapping {} bytes failed: {}", bytes, strerror(error));
  }
  return Segment(fd, data, bytes);
}

}  // namespace kt
