// SPDX-License-Identifier: Apache-2.0
// A checkpoint directory: safetensors shards. stored_model.h finds the model's weights in it.
#ifndef KT_COMMON_WEIGHTS_CHECKPOINT_H_
#define KT_COMMON_WEIGHTS_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"

namespace kt {

// One tensor of a shard. `data` points into a read-only mapping of the file owned by the
// Checkpoint; it is aligned as the file has it, which may be less than the element size.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;
  std::string file;  // for messages
  std::span<const uint8_t> data;
};

// Immutable after Open, safe for concurrent reads. Files must not be changed in place meanwhile: a
// page that is cut off raises SIGBUS when it is read (sizes are checked at Open only).
class Checkpoint {
 public:
  // Opens model.safetensors, or the shards of model.safetensors.index.json. Nothing outside `dir`
  // is opened. Every header is checked: size, JSON, dtypes, shapes against byte ranges, ranges
  // inside the file and without overlap or gap, no tensor twice, shards that hold what the index
  // says. Messages name file and tensor.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& dir);

  const std::string& dir() const { return dir_; }
  const TensorInfo* Find(const std::string& name) const;  // nullptr: absent
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  int64_t bytes() const { return bytes_; }  // of all tensors
  // Tells the kernel that a tensor's pages are no longer needed (after it was packed), so that
  // loading does not hold two copies.
  void Release(const TensorInfo& tensor) const { Release(tensor.data.data(), tensor.data.size()); }
  void Release(const uint8_t* begin, size_t bytes) const;

 private:
  friend struct CheckpointOpener;
  std::string dir_;
  std::map<std::string, TensorInfo> tensors_;
  std::vector<std::shared_ptr<void>> mappings_;
  int64_t bytes_ = 0;
};

}  // namespace kt

#endif  // KT_COMMON_WEIGHTS_CHECKPOINT_H_
