// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_BASE_DTYPE_H_
#define KT_COMMON_BASE_DTYPE_H_

#include <cstddef>
#include <optional>
#include <string_view>

namespace kt {

// Element types of tensors on disk and in memory, named as in safetensors headers.
enum class DType {
  kF32,
  kBF16,
  kF16,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool,
  kF64
};

size_t DTypeBytes(DType dtype);
std::string_view DTypeName(DType dtype);                    // "BF16"
std::optional<DType> DTypeFromName(std::string_view name);  // nullopt: not a type of safetensors

}  // namespace kt

#endif  // KT_COMMON_BASE_DTYPE_H_
