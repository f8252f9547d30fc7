// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/request_fields.h"

#include <cmath>

namespace kt::api {

std::string DescribeValue(const Json& value) {
  return fmt::format("{} {}", value.type_name(), JsonExcerpt(value));
}

absl::StatusOr<int64_t> ReadInt(const Json& value, std::string_view param, int64_t min,
                                int64_t max) {
  const auto error = [&] {
    return FieldError(param, "must be an integer between {} and {}, got {}", min, max,
                      DescribeValue(value));
  };
  int64_t x = 0;
  if (value.is_number_unsigned()) {
    if (value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return error();
    x = static_cast<int64_t>(value.get<uint64_t>());
  } else if (value.is_number_integer()) {
    x = value.get<int64_t>();
  } else if (value.is_number_float() && std::abs(value.get<double>()) < 9e15 &&
             value.get<double>() == std::floor(value.get<double>())) {
    x = static_cast<int64_t>(value.get<double>());
  } else {
    return error();
  }
  if (x < min || x > max) return error();
  return x;
}

absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const Json& value, std::string_view param,
                                                  int vocab_size, size_t min, size_t max) {
  if (!value.is_array())
    return FieldError(param, "must be a list of token ids, got {}", DescribeValue(value));
  if (value.size() < min || value.size() > max) {
    return FieldError(param, "must have {} to {} token ids, got {}", min, max, value.size());
  }
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& item : value) {
    KT_ASSIGN_OR_RETURN(int64_t id,
                        ReadInt(item, fmt::format("{}[{}]", param, ids.size()), 0, vocab_size - 1));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

const Json* RequestFields::Find(const std::string& field) const {
  auto it = object_.find(field);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void RequestFields::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

std::optional<int64_t> RequestFields::Int(const std::string& field, int64_t min, int64_t max) {
  const Json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  auto x = ReadInt(*value, field, min, max);
  if (x.ok()) return *x;
  Fail(x.status());
  return std::nullopt;
}

std::optional<float> RequestFields::Number(const std::string& field, double min, double max,
                                           bool above_min) {
  const Json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  double x = value->is_number() ? value->get<double>() : NAN;
  if (std::isfinite(x) && x >= min && x <= max && !(above_min && static_cast<float>(x) <= min))
    return static_cast<float>(x);
  Fail(above_min ? FieldError(field, "must be a number above {} and at most {}, got {}", min, max,
                              DescribeValue(*value))
                 : FieldError(field, "must be a number between {} and {}, got {}", min, max,
                              DescribeValue(*value)));
  return std::nullopt;
}

bool RequestFields::Bool(const std::string& field, bool fallback) {
  const Json* value = Find(field);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  Fail(FieldError(field, "must be true or false, got {}", DescribeValue(*value)));
  return fallback;
}

std::optional<std::string> RequestFields::String(const std::string& field, size_t bytes_max) {
  const Json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    Fail(FieldError(field, "must be a string, got {}", DescribeValue(*value)));
    return std::nullopt;
  }
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > bytes_max) {
    Fail(FieldError(field, "must have at most {} bytes, got {}", bytes_max, text.size()));
    return std::nullopt;
  }
  return text;
}

}  // namespace kt::api
