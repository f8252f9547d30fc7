// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_WEIGHTS_MAPPED_FILE_H_
#define KT_COMMON_WEIGHTS_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace kt {

// A regular file mapped read-only, unmapped when destroyed. The size is that at Open: a file cut
// short while it is mapped raises SIGBUS at the first touch of a lost page, so checkpoints are
// replaced by renaming, never by rewriting in place.
class MappedFile {
 public:
  // NotFound: no such file. InvalidArgument: not a regular file. Symbolic links are followed (the
  // hub's cache is made of them).
  static absl::StatusOr<std::shared_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  std::span<const uint8_t> bytes_;
};

}  // namespace kt

#endif  // KT_COMMON_WEIGHTS_MAPPED_FILE_H_
