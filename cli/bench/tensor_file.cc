// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/tensor_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "common/base/json.h"
#include "common/base/status.h"

namespace kt::cli {

void TensorFile::Set(const std::string& name, DType dtype, std::vector<int64_t> shape,
                     const void* data) {
  size_t bytes = DTypeBytes(dtype);
  for (int64_t size : shape) bytes *= static_cast<size_t>(size);
  tensors_[name] = {dtype, std::move(shape), std::string(static_cast<const char*>(data), bytes)};
}

absl::Status TensorFile::Write(const std::string& path) const {
  Json header = Json::object();
  size_t at = 0;
  for (const auto& [name, tensor] : tensors_) {
    header[name] = {{"dtype", std::string(DTypeName(tensor.dtype))},
                    {"shape", tensor.shape},
                    {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  const std::string text = DumpJson(header);
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text;
  for (const auto& [name, tensor] : tensors_) file << tensor.bytes;
  file.close();
  if (!file) return PermissionDenied("{}: cannot be written: {}", path, strerror(errno));
  return absl::OkStatus();
}

}  // namespace kt::cli
