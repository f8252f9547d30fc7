// SPDX-License-Identifier: Apache-2.0
// Reads what Python's pickle writes (protocol 2 and its like) as plain values. Nothing is ever
// called: a class or function is its name, a call is a value that holds its callee and arguments.
#ifndef KT_COMMON_PLACEMENT_PICKLE_H_
#define KT_COMMON_PLACEMENT_PICKLE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kt {

struct PickleValue {
  enum class Kind {
    kNone,
    kInt,           // number; also booleans
    kFloat,         // its value is not kept
    kText,          // text
    kSequence,      // items; a tuple or list
    kDict,          // items: key, value, key, value, ...
    kName,          // text: "module.name" of a class or function
    kCall,          // items: callee, arguments
    kPersistentId,  // items: one
  };
  Kind kind = Kind::kNone;
  int64_t number = 0;
  std::string text;
  std::vector<size_t> items;  // indices for Pickle::at
};

class Pickle {
 public:
  // InvalidArgument: more than 16 MiB, cut short, or an instruction that plain data does not need.
  static absl::StatusOr<Pickle> Parse(std::span<const uint8_t> bytes);

  const PickleValue& root() const { return values_[root_]; }
  const PickleValue& at(size_t index) const { return values_[index]; }
  // The last value under this key; null: `dict` is none or has none.
  const PickleValue* Find(const PickleValue& dict, std::string_view key) const;

 private:
  std::vector<PickleValue> values_;
  size_t root_ = 0;
};

}  // namespace kt

#endif  // KT_COMMON_PLACEMENT_PICKLE_H_
