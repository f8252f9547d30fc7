// SPDX-License-Identifier: Apache-2.0
// Typed reads of a request object that collect the first error, so that parsers read as a list of
// fields.
#ifndef KT_COORDINATOR_API_REQUEST_FIELDS_H_
#define KT_COORDINATOR_API_REQUEST_FIELDS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/json.h"
#include "coordinator/api/api_error.h"

namespace kt::api {

// Absent and null fields read as nothing. A wrong type or a value out of range is an error naming
// field, value and range.
class RequestFields {
 public:
  explicit RequestFields(const Json& object) : object_(object) {}  // outlives this

  // The field's value, or nullptr when absent or null.
  const Json* Find(const std::string& field) const;
  std::optional<int64_t> Int(const std::string& field, int64_t min, int64_t max);
  // In [min, max], or (min, max] with `above_min`.
  std::optional<float> Number(const std::string& field, double min, double max,
                              bool above_min = false);
  bool Bool(const std::string& field, bool fallback);
  std::optional<std::string> String(const std::string& field, size_t bytes_max);

  void Fail(absl::Status status);  // keeps the first
  const absl::Status& status() const { return status_; }

 private:
  const Json& object_;
  absl::Status status_;
};

// "string \"hot\"": how messages show a wrong value.
std::string DescribeValue(const Json& value);

// A whole number in [min, max]; otherwise an error about `param`.
absl::StatusOr<int64_t> ReadInt(const Json& value, std::string_view param, int64_t min,
                                int64_t max);

// A list of token ids below vocab_size with min to max entries.
absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const Json& value, std::string_view param,
                                                  int vocab_size, size_t min, size_t max);

}  // namespace kt::api

#endif  // KT_COORDINATOR_API_REQUEST_FIELDS_H_
