// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_TOKENIZER_NORMALIZER_H_
#define KT_COORDINATOR_TOKENIZER_NORMALIZER_H_

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/json.h"
#include "coordinator/tokenizer/pattern.h"

namespace kt {

// The `normalizer` of a tokenizer.json. Immutable, safe for concurrent use. Time n log n in the
// text.
class Normalizer {
 public:
  Normalizer() = default;  // leaves the text as it is

  // null, NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip or a Sequence of these; anything
  // else: InvalidArgument.
  static absl::StatusOr<Normalizer> FromJson(const Json& normalizer, std::string_view where);

  // `text` is valid UTF-8, and so is the result.
  absl::StatusOr<std::string> Normalize(std::string_view text, RegexRun* run) const;

 private:
  enum class Form { kNfc, kNfd, kNfkc, kNfkd };
  struct Lowercase {};
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Strip {
    bool left, right;
  };
  using Step = std::variant<Form, Lowercase, Prepend, Replace, Strip>;

  absl::Status Add(const Json& normalizer, std::string_view where, int depth);
  static std::string ToForm(Form form, std::string_view text);

  std::vector<Step> steps_;
};

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_NORMALIZER_H_
