// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_MODEL_CONFIG_READER_H_
#define KT_COMMON_MODEL_CONFIG_READER_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/json.h"
#include "common/base/status.h"

namespace kt {

// Reads the fields of a checkpoint's JSON object, each with its bounds. The first fault is kept in
// status() and later reads go on with values inside their bounds, so that a family's reader is a
// plain list of fields that checks status() once, at its end.
//
// A field is given by all of its spellings, "a.b" reaching into the object a. Spellings that are
// absent or null are skipped; those present must agree. A field without a default must be present.
// Owns nothing: the object outlives the reader.
class ConfigReader {
 public:
  using Spellings = std::initializer_list<std::string_view>;

  ConfigReader(const Json& object, std::string where);

  int Int(Spellings field, int min, int max, std::optional<int> fallback = std::nullopt);
  double Number(Spellings field, double min, double max,
                std::optional<double> fallback = std::nullopt);
  bool Bool(Spellings field, std::optional<bool> fallback = std::nullopt);
  std::string String(Spellings field, std::optional<std::string> fallback = std::nullopt);
  // One integer or a list of them; absent: empty.
  std::vector<int> Ints(Spellings field, int min, int max);
  // A list of strings; absent: empty.
  std::vector<std::string> Strings(Spellings field);
  // The field, where present, must say one of `supported`; a list must say nothing else.
  void Only(Spellings field, Spellings supported);

  bool Has(std::string_view field) { return Find(field) != nullptr; }
  // true: the field is there and is none of absent, null, false, 0, "", {} and [].
  bool Says(std::string_view field);
  // The value for a message, "(absent)" if there is none.
  std::string Excerpt(std::string_view field);

  // Keeps the first fault; the message is prefixed with the file's name.
  template <typename... Args>
  void Refuse(fmt::format_string<Args...> format, Args&&... args) {
    Fail(InvalidArgument("{}: {}", where_, fmt::format(format, std::forward<Args>(args)...)));
  }
  // Takes over the fault of a reader of a part.
  void Keep(const absl::Status& status) { Fail(status); }
  const absl::Status& status() const { return status_; }

 private:
  // The object that holds the last part of `field`, with the part's name; nullptr: absent.
  const Json* Scope(std::string_view field, std::string_view* leaf);
  const Json* Find(std::string_view field);
  void Fail(absl::Status status);
  template <typename T, typename Read>
  std::optional<T> ReadAgreeing(Spellings field, Read read);
  template <typename T>
  T Present(Spellings field, std::optional<T> value, std::optional<T> fallback, T in_bounds);

  const Json& object_;
  const std::string where_;
  absl::Status status_;
};

}  // namespace kt

#endif  // KT_COMMON_MODEL_CONFIG_READER_H_
