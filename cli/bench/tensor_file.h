// SPDX-License-Identifier: Apache-2.0
#ifndef KT_CLI_BENCH_TENSOR_FILE_H_
#define KT_CLI_BENCH_TENSOR_FILE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/dtype.h"

namespace kt::cli {

// Tensors to be written as one safetensors file.
class TensorFile {
 public:
  // Copies the bytes; a tensor of the same name is replaced.
  void Set(const std::string& name, DType dtype, std::vector<int64_t> shape, const void* data);
  // PermissionDenied: the file cannot be written.
  absl::Status Write(const std::string& path) const;

 private:
  struct Tensor {
    DType dtype;
    std::vector<int64_t> shape;
    std::string bytes;
  };
  std::map<std::string, Tensor> tensors_;
};

}  // namespace kt::cli

#endif  // KT_CLI_BENCH_TENSOR_FILE_H_
