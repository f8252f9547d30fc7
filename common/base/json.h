// SPDX-License-Identifier: Apache-2.0
// The one place where JSON from outside is parsed: bounded, no exception leaves it.
#ifndef KT_COMMON_BASE_JSON_H_
#define KT_COMMON_BASE_JSON_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace kt {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  size_t bytes_max = size_t{64} << 20;
  int depth_max = 64;
};

// Called for every value and key while parsing; false drops it. For objects of many keys, whose
// insertion is linear in Json.
using JsonFilter = Json::parser_callback_t;

// Parses UTF-8 JSON text. InvalidArgument: not JSON, not UTF-8, too large or too deep (with the
// byte position where known).
absl::StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits = {},
                               const JsonFilter& filter = nullptr);

// Reads a whole file and parses it; messages begin with the path.
absl::StatusOr<Json> ReadJsonFile(const std::string& path, const JsonLimits& limits = {},
                                  const JsonFilter& filter = nullptr);

// Serialises without ever throwing: invalid UTF-8 in strings becomes U+FFFD.
std::string DumpJson(const Json& value, int indent = -1);

// Typed reads of one field of an object. `where` names the object in messages ("config.json",
// "messages[2]"). Absent or null: nullopt. Present with another type or outside [min, max]:
// InvalidArgument naming field, value and what is expected.
absl::StatusOr<std::optional<int64_t>> JsonInt(const Json& object, std::string_view field,
                                               std::string_view where, int64_t min = INT64_MIN,
                                               int64_t max = INT64_MAX);
absl::StatusOr<std::optional<double>> JsonNumber(
    const Json& object, std::string_view field, std::string_view where, double min = -1e308,
    double max = 1e308);  // NaN and infinity are refused
absl::StatusOr<std::optional<bool>> JsonBool(const Json& object, std::string_view field,
                                             std::string_view where);
absl::StatusOr<std::optional<std::string>> JsonString(const Json& object, std::string_view field,
                                                      std::string_view where);
absl::StatusOr<std::optional<std::vector<std::string>>> JsonStrings(const Json& object,
                                                                    std::string_view field,
                                                                    std::string_view where);

// A value shortened for a message: at most 80 bytes, cut at a character.
std::string JsonExcerpt(const Json& value);

}  // namespace kt

#endif  // KT_COMMON_BASE_JSON_H_
