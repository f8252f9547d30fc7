// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_TOKENIZER_PATTERN_H_
#define KT_COORDINATOR_TOKENIZER_PATTERN_H_

#include <string>
#include <string_view>
#include <variant>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/base/json.h"
#include "coordinator/tokenizer/regex.h"

namespace kt {

// The `pattern` of a Split or Replace step: a literal text or a regular expression. Immutable, safe
// for concurrent use.
class Pattern {
 public:
  // {"String": ...} or {"Regex": ...}; `where` names the step in messages.
  static absl::StatusOr<Pattern> FromJson(const Json& step, std::string_view where);
  explicit Pattern(Regex regex) : pattern_(std::move(regex)) {}

  // As Regex::ForEachMatch.
  absl::Status ForEachMatch(std::string_view text, RegexRun* run,
                            absl::FunctionRef<void(size_t, size_t)> found) const;

 private:
  explicit Pattern(std::string literal) : pattern_(std::move(literal)) {}
  std::variant<std::string, Regex> pattern_;
};

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_PATTERN_H_
