// SPDX-License-Identifier: Apache-2.0
#include "common/weights/tensor_faults.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/weights/safetensors.h"

namespace kt {

std::string DescribeTensor(DType dtype, const TensorShape& shape) {
  return fmt::format("{} [{}]", DTypeName(dtype), fmt::join(shape, ", "));
}

void TensorFaults::Missing(std::string_view name, DType dtype, const TensorShape& shape) {
  Add("missing",
      fmt::format("tensor {} ({}) is missing", Quoted(name), DescribeTensor(dtype, shape)));
}

void TensorFaults::WrongShape(const TensorInfo& found, std::string_view expected) {
  Add("wrong shapes",
      fmt::format("{}: tensor {} is {}, expected {}", found.file, Quoted(found.name),
                  DescribeTensor(found.dtype, found.shape), expected));
}

void TensorFaults::WrongDType(const TensorInfo& found, std::string_view expected) {
  Add("wrong dtypes",
      fmt::format("{}: tensor {} is {}, which no engine serves there; expected {}", found.file,
                  Quoted(found.name), DTypeName(found.dtype), expected));
}

void TensorFaults::Add(std::string_view kind, std::string message) {
  if (muted_) return;
  auto it =
      std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& k) { return k.name == kind; });
  if (it == kinds_.end()) {
    kinds_.push_back({std::string(kind), std::move(message), 0});
  } else {
    ++it->more;
  }
}

absl::Status TensorFaults::ToStatus(std::string_view dir) const {
  if (kinds_.empty()) return absl::OkStatus();
  std::string text;
  for (const Kind& k : kinds_) {
    text += text.empty() ? "" : "; ";
    text += k.message;
    if (k.more > 0) text += fmt::format(" (and {} more {})", k.more, k.name);
  }
  return InvalidArgument("{}: weights do not fit config.json: {}", dir, text);
}

}  // namespace kt
