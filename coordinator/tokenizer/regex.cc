// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "common/base/status.h"
#include "coordinator/tokenizer/utf8.h"

namespace kt {
namespace {

// A split of a published vocabulary takes 2 to 4 per byte of prose, at most 25 of any text.
constexpr uint64_t kWorkBase = 1'000'000, kWorkPerByte = 200;

std::string Pcre2Message(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

RegexRun::RegexRun(size_t text_bytes)
    : work_left_(kWorkBase + kWorkPerByte * text_bytes),
      data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)) {
  // PCRE2's own count starts anew wherever a match is tried, and leaves out most of what compiled
  // code does.
  pcre2_set_match_limit(context_, UINT32_MAX);
  pcre2_set_heap_limit(context_, 256 << 10);  // KiB
  pcre2_set_callout(
      context_,
      [](pcre2_callout_block* at, void* run) {
        return static_cast<RegexRun*>(run)->Charge(at->current_position) ? 0 : PCRE2_ERROR_CALLOUT;
      },
      this);
}

RegexRun::~RegexRun() {
  pcre2_match_context_free(context_);
  pcre2_match_data_free(data_);
}

bool RegexRun::Charge(size_t position) {
  uint64_t work = 1 + (position > position_ ? position - position_ : position_ - position);
  position_ = position;
  if (work > work_left_) return false;
  work_left_ -= work;
  return true;
}

Regex::Regex(pcre2_code* code) : code_(code, pcre2_code_free) {}

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  KT_ASSIGN_OR_RETURN(std::string translated, TranslateOnigurumaRegex(pattern));
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                        PCRE2_AUTO_CALLOUT,  // before every item of the pattern
                    &error, &offset, context.get());
  if (code == nullptr)
    return InvalidArgument("regular expression {:?}: {}", pattern, Pcre2Message(error));
  Regex regex(code);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // Where there is no JIT, pcre2_match interprets.
  return regex;
}

absl::Status Regex::ForEachMatch(std::string_view text, RegexRun* run,
                                 absl::FunctionRef<void(size_t, size_t)> found) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t last_end = PCRE2_UNSET;
  for (size_t start = 0; start <= text.size();) {
    run->position_ = start;
    int rc = pcre2_match(code_.get(), subject, text.size(), start, PCRE2_NO_UTF_CHECK, run->data_,
                         run->context_);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code_.get(), subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       run->data_, run->context_);
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0)
      return InvalidArgument(
          "the text cannot be split: the tokenizer's pattern takes too long on it ({})",
          rc == PCRE2_ERROR_CALLOUT ? "work limit exceeded" : Pcre2Message(rc));
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(run->data_);
    if (span[0] == span[1] &&
        span[1] == last_end) {  // An empty match right behind the last one is none.
      if (start == text.size()) break;
      NextUtf8(text, &start);
      continue;
    }
    found(span[0], span[1]);
    start = last_end = span[1];
  }
  return absl::OkStatus();
}

}  // namespace kt
