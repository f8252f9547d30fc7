// SPDX-License-Identifier: Apache-2.0
// The safetensors format, as pure functions on bytes. A file is an unsigned 64-bit little-endian
// length n, n bytes of JSON
// {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__":
// {string: string}}, then the data.
#ifndef KT_COMMON_WEIGHTS_SAFETENSORS_H_
#define KT_COMMON_WEIGHTS_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"

namespace kt {

inline constexpr uint64_t kSafetensorsHeaderMax =
    100'000'000;  // bytes of JSON, the format's own limit

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;     // may hold zeros
  std::span<const uint8_t> data;  // inside the bytes parsed; not aligned beyond what the file gives
};

// The tensors of a whole file in the order of their bytes. InvalidArgument: anything but a
// well-formed file whose ranges fit shapes and dtypes and cover the data exactly once. Names are
// not checked against any model.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensors(std::span<const uint8_t> file);

// The weight_map of model.safetensors.index.json: tensor name → shard file. Shards are plain names
// of .safetensors files, so none leads out of the directory.
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view json);

// A name from outside made fit for a message: quoted, escaped, cut to 80 bytes.
std::string Quoted(std::string_view name);

}  // namespace kt

#endif  // KT_COMMON_WEIGHTS_SAFETENSORS_H_
