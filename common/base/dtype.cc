// SPDX-License-Identifier: Apache-2.0
#include "common/base/dtype.h"

#include <array>

namespace kt {
namespace {
struct Row {
  DType dtype;
  std::string_view name;
  size_t bytes;
};
constexpr std::array kRows = {
    Row{DType::kF32, "F32", 4},        Row{DType::kBF16, "BF16", 2},
    Row{DType::kF16, "F16", 2},        Row{DType::kF8E4M3, "F8_E4M3", 1},
    Row{DType::kF8E5M2, "F8_E5M2", 1}, Row{DType::kF8E8M0, "F8_E8M0", 1},
    Row{DType::kI64, "I64", 8},        Row{DType::kI32, "I32", 4},
    Row{DType::kI16, "I16", 2},        Row{DType::kI8, "I8", 1},
    Row{DType::kU8, "U8", 1},          Row{DType::kBool, "BOOL", 1},
    Row{DType::kF64, "F64", 8},
};
const Row& Find(DType dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return row;
  }
  return kRows[0];
}
}  // namespace

size_t DTypeBytes(DType dtype) { return Find(dtype).bytes; }
std::string_view DTypeName(DType dtype) { return Find(dtype).name; }
std::optional<DType> DTypeFromName(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace kt
