// SPDX-License-Identifier: Apache-2.0
// Regular expressions of tokenizer files, run by PCRE2 with the meaning they have in HF tokenizers
// (Oniguruma).
#ifndef KT_COORDINATOR_TOKENIZER_REGEX_H_
#define KT_COORDINATOR_TOKENIZER_REGEX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace kt {

// The bound on one piece of work with regular expressions, and its buffers. One thread at a time.
class RegexRun {
 public:
  // Matching stops with an error after many times the work that `text_bytes` of text take. Work is
  // counted, not timed: whether a text is refused depends on nothing but the text.
  explicit RegexRun(size_t text_bytes);
  ~RegexRun();
  RegexRun(const RegexRun&) = delete;
  RegexRun& operator=(const RegexRun&) = delete;

 private:
  friend class Regex;
  bool Charge(size_t position);

  uint64_t work_left_;   // items of patterns tried and bytes passed
  size_t position_ = 0;  // in the text, at the last item tried
  pcre2_real_match_data_8* data_;
  pcre2_real_match_context_8* context_;
};

// Immutable, safe for concurrent use.
class Regex {
 public:
  // Oniguruma syntax. InvalidArgument names what is wrong or not supported.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);

  // Calls `found(begin, end)` for every match in valid UTF-8, left to right, without overlap.
  // InvalidArgument: the text makes the pattern backtrack beyond the bounds of `run`.
  absl::Status ForEachMatch(std::string_view text, RegexRun* run,
                            absl::FunctionRef<void(size_t, size_t)> found) const;

 private:
  explicit Regex(pcre2_real_code_8* code);
  std::shared_ptr<pcre2_real_code_8> code_;
};

// The same expression in PCRE2's syntax (with UTF, UCP, MULTILINE), every construct that the two
// read differently rewritten.
absl::StatusOr<std::string> TranslateOnigurumaRegex(std::string_view pattern);

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_REGEX_H_
