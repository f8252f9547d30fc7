// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_WEIGHTS_TENSOR_FAULTS_H_
#define KT_COMMON_WEIGHTS_TENSOR_FAULTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/dtype.h"
#include "common/weights/checkpoint.h"

namespace kt {

using TensorShape = std::vector<int64_t>;

// "BF16 [32, 128]"
std::string DescribeTensor(DType dtype, const TensorShape& shape);

// What is wrong with a checkpoint: the first fault of each kind, and how many more there are.
class TensorFaults {
 public:
  // Faults are not recorded while muted.
  void set_muted(bool muted) { muted_ = muted; }

  void Missing(std::string_view name, DType dtype, const TensorShape& shape);
  void WrongShape(const TensorInfo& found, std::string_view expected);
  void WrongDType(const TensorInfo& found, std::string_view expected);
  // `kind` is a plural: "unexpected".
  void Add(std::string_view kind, std::string message);

  // OK without faults, else InvalidArgument for the checkpoint in `dir`.
  absl::Status ToStatus(std::string_view dir) const;

 private:
  struct Kind {
    std::string name, message;
    int more;
  };
  bool muted_ = false;
  std::vector<Kind> kinds_;
};

}  // namespace kt

#endif  // KT_COMMON_WEIGHTS_TENSOR_FAULTS_H_
