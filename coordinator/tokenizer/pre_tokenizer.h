// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_TOKENIZER_PRE_TOKENIZER_H_
#define KT_COORDINATOR_TOKENIZER_PRE_TOKENIZER_H_

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/json.h"
#include "coordinator/tokenizer/pattern.h"

namespace kt {

// The pieces of a text that BPE works on. They point into the text given or into `copies`.
struct Pieces {
  std::vector<std::string_view> pieces;
  std::deque<std::string> copies;
};

// The `pre_tokenizer` of a byte-level tokenizer.json. Immutable, safe for concurrent use.
class PreTokenizer {
 public:
  // Split, Digits, Whitespace, WhitespaceSplit, Punctuation, ByteLevel or a Sequence of these that
  // ends in ByteLevel; anything else: InvalidArgument.
  static absl::StatusOr<PreTokenizer> FromJson(const Json& pre_tokenizer, std::string_view where);
  // One split with `pattern` whose matches and the text between them are the pieces.
  static PreTokenizer FromRegex(Regex pattern);

  // `text` is valid UTF-8 and outlives the pieces; none of them is empty.
  absl::StatusOr<Pieces> Split(std::string_view text, RegexRun* run) const;

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct SplitStep {
    Pattern pattern;
    Behavior behavior;
    bool invert;
  };
  struct PrefixSpace {};  // a space in front of every piece that has none
  struct Span {
    size_t begin, end;
    bool is_match;
  };

  PreTokenizer() = default;
  absl::Status Add(const Json& pre_tokenizer, std::string_view where, int depth);
  absl::Status AddSplit(const Json& json, std::string_view where);
  absl::Status AddRegex(std::string_view regex, Behavior behavior, bool invert);
  static absl::StatusOr<Behavior> BehaviorFromJson(const Json& json, std::string_view where);
  static absl::Status SplitPiece(const SplitStep& step, std::string_view piece, RegexRun* run,
                                 std::vector<std::string_view>* out);
  static void Merge(Behavior behavior, std::vector<Span>* spans);

  std::vector<std::variant<SplitStep, PrefixSpace>> steps_;
  bool byte_level_ = false;  // while loading: the ByteLevel step has been seen
};

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_PRE_TOKENIZER_H_
