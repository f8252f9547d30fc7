// SPDX-License-Identifier: Apache-2.0
#include "coordinator/template/python_json.h"

#include <fmt/format.h>

namespace kt {
namespace {

void Append(const Json& value, std::string* out);

// fmt's shortest form changes to an exponent where repr() does, but leaves ".0" away.
std::string PythonFloat(double x) {
  std::string text = fmt::format("{}", x);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

void AppendParts(const Json& value, std::string* out) {
  const char* separator = "";
  for (const auto& [key, part] : value.items()) {
    *out += separator;
    separator = ", ";
    if (value.is_object()) *out += DumpJson(key) + ": ";
    Append(part, out);
  }
}

void Append(const Json& value, std::string* out) {
  if (value.is_structured()) {
    *out += value.is_object() ? '{' : '[';
    AppendParts(value, out);
    *out += value.is_object() ? '}' : ']';
  } else {
    *out += value.is_number_float() ? PythonFloat(value.get<double>()) : DumpJson(value);
  }
}

}  // namespace

std::string PythonJson(const Json& value) {
  std::string text;
  Append(value, &text);
  return text;
}

}  // namespace kt
