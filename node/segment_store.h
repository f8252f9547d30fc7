// SPDX-License-Identifier: Apache-2.0
#ifndef KT_NODE_SEGMENT_STORE_H_
#define KT_NODE_SEGMENT_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ipc/unique_fd.h"

namespace kt {

// The memfds of a machine's runtime, by name: made here, or given by a process. It never touches
// their pages: users allocate them (NodeClient::GetSegment), so that no call here takes long.
// Threads: one.
class SegmentStore {
 public:
  static constexpr size_t kSegmentsMax = 1024;

  struct Held {
    UniqueFd fd;
    uint64_t bytes;  // whole pages
  };

  // `available_bytes` says how much memory can be promised now.
  explicit SegmentStore(std::function<uint64_t()> available_bytes)
      : available_bytes_(std::move(available_bytes)) {}

  // The segment `name`, created if there is none. Valid until it is dropped. InvalidArgument: name
  // or size; FailedPrecondition: it exists with another size; ResourceExhausted: too much memory or
  // too many segments.
  absl::StatusOr<const Held*> GetOrCreate(const std::string& name, uint64_t bytes);
  // Holds a size-sealed memfd that another process has made. InvalidArgument: name, or not such a
  // descriptor; AlreadyExists: the name is taken; ResourceExhausted: too many segments.
  absl::Status Put(const std::string& name, UniqueFd fd);
  absl::StatusOr<const Held*> Find(const std::string& name) const;  // NotFound: there is none
  absl::Status Drop(const std::string& name);
  const std::map<std::string, Held>& held() const { return held_; }

 private:
  absl::Status CheckName(const std::string& name) const;
  absl::Status CheckRoom(const std::string& name) const;

  std::function<uint64_t()> available_bytes_;
  std::map<std::string, Held> held_;
};

}  // namespace kt

#endif  // KT_NODE_SEGMENT_STORE_H_
