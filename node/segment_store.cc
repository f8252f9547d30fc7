// SPDX-License-Identifier: Apache-2.0
#include "node/segment_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/status.h"
#include "node/spec.h"

namespace kt {
namespace {
constexpr uint64_t kPage = 4096;
constexpr uint64_t kBytesMax = uint64_t{1} << 46;
}  // namespace

absl::Status SegmentStore::CheckName(const std::string& name) const {
  if (!IsPlainName(name))
    return InvalidArgument("segment name {}: use letters, digits, '.', '_' and '-'", name);
  return absl::OkStatus();
}

absl::StatusOr<const SegmentStore::Held*> SegmentStore::GetOrCreate(const std::string& name,
                                                                    uint64_t bytes) {
  KT_RETURN_IF_ERROR(CheckName(name));
  if (bytes == 0 || bytes > kBytesMax) {
    return InvalidArgument("segment {}: {} bytes asked for, 1 to {} are possible", name, bytes,
                           kBytesMax);
  }
  bytes = (bytes + kPage - 1) / kPage * kPage;
  if (auto found = held_.find(name); found != held_.end()) {
    if (found->second.bytes != bytes) {
      return FailedPrecondition("segment {}: has {} bytes, {} asked for; drop it first", name,
                                found->second.bytes, bytes);
    }
    return &found->second;
  }
  KT_RETURN_IF_ERROR(CheckRoom(name));
  if (uint64_t available = available_bytes_(); bytes > available) {
    return ResourceExhausted("segment {}: {} bytes asked for, {} bytes of memory are available",
                             name, bytes, available);
  }
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ResourceExhausted("segment {}: cannot be created with {} bytes: {}", name, bytes,
                             strerror(errno));
  }
  return &held_.emplace(name, Held{std::move(fd), bytes}).first->second;
}

absl::Status SegmentStore::CheckRoom(const std::string& name) const {
  if (held_.size() >= kSegmentsMax)
    return ResourceExhausted("segment {}: {} segments exist already", name, held_.size());
  return absl::OkStatus();
}

absl::Status SegmentStore::Put(const std::string& name, UniqueFd fd) {
  KT_RETURN_IF_ERROR(CheckName(name));
  if (held_.contains(name)) return AlreadyExists("segment {}: there is one already", name);
  KT_RETURN_IF_ERROR(CheckRoom(name));
  constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  struct stat st {};
  const int seals = fd.valid() ? fcntl(fd.get(), F_GET_SEALS) : -1;
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals || fstat(fd.get(), &st) != 0)
    return InvalidArgument("segment {}: what was given is not a size-sealed memfd", name);
  held_.emplace(name, Held{std::move(fd), static_cast<uint64_t>(st.st_size)});
  return absl::OkStatus();
}

absl::StatusOr<const SegmentStore::Held*> SegmentStore::Find(const std::string& name) const {
  const auto found = held_.find(name);
  if (found == held_.end()) return NotFound("segment {}: there is none", name);
  return &found->second;
}

absl::Status SegmentStore::Drop(const std::string& name) {
  if (held_.erase(name) == 0) return NotFound("segment {}: there is none", name);
  return absl::OkStatus();
}

}  // namespace kt
