// SPDX-License-Identifier: Apache-2.0
#include "common/model/config_reader.h"

#include <algorithm>
#include <utility>

namespace kt {

ConfigReader::ConfigReader(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object.is_object()) Refuse("must be a JSON object, got {}", object.type_name());
}

const Json* ConfigReader::Scope(std::string_view field, std::string_view* leaf) {
  const Json* scope = &object_;
  for (size_t dot; (dot = field.find('.')) != std::string_view::npos;
       field.remove_prefix(dot + 1)) {
    std::string name(field.substr(0, dot));
    if (!scope->is_object()) return nullptr;
    auto it = scope->find(name);
    if (it == scope->end() || it->is_null()) return nullptr;
    if (!it->is_object()) {
      Refuse("{} must be an object or null, got {}", name, JsonExcerpt(*it));
      return nullptr;
    }
    scope = &*it;
  }
  *leaf = field;
  return scope;
}

const Json* ConfigReader::Find(std::string_view field) {
  std::string_view leaf;
  const Json* scope = Scope(field, &leaf);
  if (scope == nullptr || !scope->is_object()) return nullptr;
  auto it = scope->find(std::string(leaf));
  return it == scope->end() || it->is_null() ? nullptr : &*it;
}

std::string ConfigReader::Excerpt(std::string_view field) {
  const Json* value = Find(field);
  return value == nullptr ? "(absent)" : JsonExcerpt(*value);
}

void ConfigReader::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

template <typename T, typename Read>
std::optional<T> ConfigReader::ReadAgreeing(Spellings field, Read read) {
  std::optional<T> result;
  std::string_view first;
  for (std::string_view spelling : field) {
    std::string_view leaf;
    const Json* scope = Scope(spelling, &leaf);
    if (scope == nullptr) continue;
    // "config.json: rope_scaling" for a field of rope_scaling.
    const std::string_view path = spelling.substr(0, spelling.size() - leaf.size());
    absl::StatusOr<std::optional<T>> value = read(
        *scope, leaf,
        path.empty() ? where_ : fmt::format("{}: {}", where_, path.substr(0, path.size() - 1)));
    if (!value.ok()) {
      Fail(value.status());
    } else if (value->has_value() && result.has_value() && **value != *result) {
      Refuse("{} is {} but {} is {}; they mean the same, remove one", first, Excerpt(first),
             spelling, Excerpt(spelling));
    } else if (value->has_value() && !result.has_value()) {
      result = *value;
      first = spelling;
    }
  }
  return result;
}

template <typename T>
T ConfigReader::Present(Spellings field, std::optional<T> value, std::optional<T> fallback,
                        T in_bounds) {
  if (value.has_value()) return *std::move(value);
  if (fallback.has_value()) return *std::move(fallback);
  Refuse("{} is missing", *field.begin());
  return in_bounds;
}

int ConfigReader::Int(Spellings field, int min, int max, std::optional<int> fallback) {
  auto value = ReadAgreeing<int64_t>(
      field, [&](const Json& scope, std::string_view leaf, const std::string& where) {
        return JsonInt(scope, leaf, where, min, max);
      });
  return Present<int>(field, value, fallback, min);
}

double ConfigReader::Number(Spellings field, double min, double max,
                            std::optional<double> fallback) {
  auto value = ReadAgreeing<double>(
      field, [&](const Json& scope, std::string_view leaf, const std::string& where) {
        return JsonNumber(scope, leaf, where, min, max);
      });
  return Present<double>(field, value, fallback, min);
}

bool ConfigReader::Bool(Spellings field, std::optional<bool> fallback) {
  auto value = ReadAgreeing<bool>(
      field, [&](const Json& scope, std::string_view leaf, const std::string& where) {
        return JsonBool(scope, leaf, where);
      });
  return Present<bool>(field, value, fallback, false);
}

std::string ConfigReader::String(Spellings field, std::optional<std::string> fallback) {
  auto value = ReadAgreeing<std::string>(
      field, [&](const Json& scope, std::string_view leaf, const std::string& where) {
        return JsonString(scope, leaf, where);
      });
  return Present<std::string>(field, std::move(value), std::move(fallback), std::string());
}

std::vector<int> ConfigReader::Ints(Spellings field, int min, int max) {
  std::vector<int> out;
  for (std::string_view spelling : field) {
    const Json* value = Find(spelling);
    if (value == nullptr) continue;
    const Json list = value->is_array() ? *value : Json::array({*value});
    for (const Json& item : list) {
      std::string name(spelling);
      if (item.is_null()) {
        Refuse("{} must hold integers, got null", name);
        continue;
      }
      auto x = JsonInt(Json{{name, item}}, name, where_, min, max);
      if (x.ok()) {
        out.push_back(static_cast<int>(**x));
      } else {
        Fail(x.status());
      }
    }
  }
  return out;
}

std::vector<std::string> ConfigReader::Strings(Spellings field) {
  auto value = ReadAgreeing<std::vector<std::string>>(
      field, [&](const Json& scope, std::string_view leaf, const std::string& where) {
        return JsonStrings(scope, leaf, where);
      });
  return value.value_or(std::vector<std::string>());
}

bool ConfigReader::Says(std::string_view field) {
  const Json* value = Find(field);
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_number()) return value->get<double>() != 0;
  if (value->is_string()) return !value->get_ref<const std::string&>().empty();
  return !value->empty();
}

void ConfigReader::Only(Spellings field, Spellings supported) {
  for (std::string_view spelling : field) {
    const Json* value = Find(spelling);
    if (value == nullptr) continue;
    const Json list = value->is_array() ? *value : Json::array({*value});
    for (const Json& item : list) {
      if (item.is_string() && std::find(supported.begin(), supported.end(),
                                        item.get_ref<const std::string&>()) != supported.end()) {
        continue;
      }
      Refuse("{} {} is not supported; supported: \"{}\"", spelling, JsonExcerpt(item),
             fmt::join(supported, "\", \""));
    }
  }
}

}  // namespace kt
