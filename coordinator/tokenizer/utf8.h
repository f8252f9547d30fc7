// SPDX-License-Identifier: Apache-2.0
// UTF-8 as the Unicode standard defines it: no surrogates, no overlong forms, at most U+10FFFF.
#ifndef KT_COORDINATOR_TOKENIZER_UTF8_H_
#define KT_COORDINATOR_TOKENIZER_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kt {

// Byte position of the first invalid sequence, npos when the text is valid.
size_t FindInvalidUtf8(std::string_view text);

// Every maximal invalid part becomes one U+FFFD (as in Python's errors="replace" and Rust's
// from_utf8_lossy).
std::string ReplaceInvalidUtf8(std::string_view bytes);

// Length of the tail that is the beginning of a character (or encoded surrogate) but not yet a
// whole one: 0 to 3.
size_t IncompleteUtf8Tail(std::string_view bytes);

// The character that begins at / ends before `pos` of valid text; `*pos` moves past it.
char32_t NextUtf8(std::string_view text, size_t* pos);
char32_t PreviousUtf8(std::string_view text, size_t* pos);

void AppendUtf8(char32_t c, std::string* text);

// White_Space property: the `\s` of tokenizer.json and Rust's char::is_whitespace.
bool IsUnicodeSpace(char32_t c);

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_UTF8_H_
