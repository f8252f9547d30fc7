// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/pattern.h"

#include "common/base/status.h"

namespace kt {

absl::StatusOr<Pattern> Pattern::FromJson(const Json& step, std::string_view where) {
  const Json pattern = step.value("pattern", Json());
  KT_ASSIGN_OR_RETURN(auto literal, JsonString(pattern, "String", where));
  KT_ASSIGN_OR_RETURN(auto regex, JsonString(pattern, "Regex", where));
  if (literal && !literal->empty()) return Pattern(*std::move(literal));
  if (!regex)
    return InvalidArgument(
        "{}: pattern must be {{\"String\": text}} or {{\"Regex\": expression}}, got {}", where,
        JsonExcerpt(pattern));
  auto compiled = Regex::Compile(*regex);
  if (!compiled.ok()) return Annotate(compiled.status(), where);
  return Pattern(*std::move(compiled));
}

absl::Status Pattern::ForEachMatch(std::string_view text, RegexRun* run,
                                   absl::FunctionRef<void(size_t, size_t)> found) const {
  if (const Regex* regex = std::get_if<Regex>(&pattern_))
    return regex->ForEachMatch(text, run, found);
  const std::string& literal = std::get<std::string>(pattern_);
  for (size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    found(at, at + literal.size());
  }
  return absl::OkStatus();
}

}  // namespace kt
