// SPDX-License-Identifier: Apache-2.0
#include "common/base/json.h"

#include <cmath>
#include <fstream>
#include <sstream>

#include "common/base/status.h"

namespace kt {
namespace {

absl::Status WrongType(const Json& value, std::string_view field, std::string_view where,
                       std::string_view expected) {
  return InvalidArgument("{}: {} must be {}, got {} {}", where, field, expected, value.type_name(),
                         JsonExcerpt(value));
}

const Json* Find(const Json& object, std::string_view field) {
  if (!object.is_object()) return nullptr;
  auto it = object.find(std::string(field));
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits,
                               const JsonFilter& filter) {
  if (text.size() > limits.bytes_max) {
    return InvalidArgument("JSON text has {} bytes, more than the {} allowed", text.size(),
                           limits.bytes_max);
  }
  // The depth is checked on the text first: a cheap scan that no nesting can make recursive.
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > limits.depth_max)
        return InvalidArgument("JSON is nested deeper than {} levels at byte {}", limits.depth_max,
                               i);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  try {
    return Json::parse(text.begin(), text.end(), filter);
  } catch (const nlohmann::json::parse_error& e) {
    return InvalidArgument("not valid JSON at byte {}", e.byte);
  } catch (const std::exception& e) {
    return InvalidArgument("not valid JSON: {}", e.what());
  }
}

absl::StatusOr<Json> ReadJsonFile(const std::string& path, const JsonLimits& limits,
                                  const JsonFilter& filter) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound("{}: cannot be opened", path);
  file.seekg(0, std::ios::end);
  auto size = static_cast<int64_t>(file.tellg());
  if (size < 0 || static_cast<size_t>(size) > limits.bytes_max) {
    return InvalidArgument("{}: has {} bytes, more than the {} allowed", path, size,
                           limits.bytes_max);
  }
  file.seekg(0);
  std::string text(static_cast<size_t>(size), '\0');
  file.read(text.data(), size);
  auto json =
      ParseJson(std::string_view(text.data(), static_cast<size_t>(file.gcount())), limits, filter);
  if (!json.ok()) return Annotate(json.status(), path);
  return json;
}

std::string DumpJson(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string JsonExcerpt(const Json& value) {
  std::string text = DumpJson(value);
  if (text.size() <= 80) return text;
  size_t end = 77;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

absl::StatusOr<std::optional<int64_t>> JsonInt(const Json& object, std::string_view field,
                                               std::string_view where, int64_t min, int64_t max) {
  const Json* v = Find(object, field);
  if (v == nullptr) return std::optional<int64_t>();
  int64_t x = 0;
  if (v->is_number_unsigned()) {
    uint64_t u = v->get<uint64_t>();
    if (u > static_cast<uint64_t>(INT64_MAX)) return WrongType(*v, field, where, "an integer");
    x = static_cast<int64_t>(u);
  } else if (v->is_number_integer()) {
    x = v->get<int64_t>();
  } else if (v->is_number_float() && std::abs(v->get<double>()) < 9e15 &&
             v->get<double>() == std::floor(v->get<double>())) {
    x = static_cast<int64_t>(v->get<double>());
  } else {
    return WrongType(*v, field, where, "an integer");
  }
  if (x < min || x > max) {
    if (max == INT64_MAX)
      return InvalidArgument("{}: {} must be at least {}, got {}", where, field, min, x);
    return InvalidArgument("{}: {} must be between {} and {}, got {}", where, field, min, max, x);
  }
  return std::optional<int64_t>(x);
}

absl::StatusOr<std::optional<double>> JsonNumber(const Json& object, std::string_view field,
                                                 std::string_view where, double min, double max) {
  const Json* v = Find(object, field);
  if (v == nullptr) return std::optional<double>();
  if (!v->is_number()) return WrongType(*v, field, where, "a number");
  double x = v->get<double>();
  if (!std::isfinite(x) || x < min || x > max) {
    return InvalidArgument("{}: {} must be between {} and {}, got {}", where, field, min, max,
                           JsonExcerpt(*v));
  }
  return std::optional<double>(x);
}

absl::StatusOr<std::optional<bool>> JsonBool(const Json& object, std::string_view field,
                                             std::string_view where) {
  const Json* v = Find(object, field);
  if (v == nullptr) return std::optional<bool>();
  if (!v->is_boolean()) return WrongType(*v, field, where, "true or false");
  return std::optional<bool>(v->get<bool>());
}

absl::StatusOr<std::optional<std::string>> JsonString(const Json& object, std::string_view field,
                                                      std::string_view where) {
  const Json* v = Find(object, field);
  if (v == nullptr) return std::optional<std::string>();
  if (!v->is_string()) return WrongType(*v, field, where, "a string");
  return std::optional<std::string>(v->get<std::string>());
}

absl::StatusOr<std::optional<std::vector<std::string>>> JsonStrings(const Json& object,
                                                                    std::string_view field,
                                                                    std::string_view where) {
  const Json* v = Find(object, field);
  if (v == nullptr) return std::optional<std::vector<std::string>>();
  if (!v->is_array()) return WrongType(*v, field, where, "a list of strings");
  std::vector<std::string> out;
  for (const Json& item : *v) {
    if (!item.is_string())
      return WrongType(item, fmt::format("{}[{}]", field, out.size()), where, "a string");
    out.push_back(item.get<std::string>());
  }
  return std::optional<std::vector<std::string>>(std::move(out));
}

}  // namespace kt
