// SPDX-License-Identifier: Apache-2.0
#include "node/segment_store.h"

#include <fcntl.h>
#include <sys/mman.h>
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

absl::StatusOr<const SegmentStore::Held*> SegmentStore::GetOrCreate(const std::string& name,
                                                                    uint64_t bytes) {
  if (!IsPlainName(name))
    return InvalidArgument("segment name {}: use letters, digits, '.', '_' and '-'", name);
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
  if (held_.size() >= kSegmentsMax)
    return ResourceExhausted("segment {}: {} segments exist already", name, held_.size());
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

absl::Status SegmentStore::Drop(const std::string& name) {
  if (held_.erase(name) == 0) return NotFound("segment {}: there is none", name);
  return absl::OkStatus();
}

}  // namespace kt
