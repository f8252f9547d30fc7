// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/utf8.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>

namespace kt {
namespace {

// Bytes of the sequence at the start of `bytes`: the whole character, or the maximal part that a
// valid one could begin with (at least 1), in which case *valid is false.
size_t SequenceLength(std::string_view bytes, bool* valid) {
  const auto* s = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t length = 0;
  UChar32 c;
  U8_NEXT(s, length, bytes.size(), c);
  *valid = c >= 0;
  return length;
}

}  // namespace

size_t FindInvalidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    bool valid;
    size_t length = SequenceLength(text.substr(i), &valid);
    if (!valid) return i;
    i += length;
  }
  return std::string_view::npos;
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    bool valid;
    size_t length = SequenceLength(bytes.substr(i), &valid);
    if (valid) {
      out.append(bytes.substr(i, length));
    } else {
      out.append("\xEF\xBF\xBD");
    }
    i += length;
  }
  return out;
}

size_t IncompleteUtf8Tail(std::string_view bytes) {
  // The first two bytes of an encoded surrogate wait for the third, as in Python's incremental
  // decoder.
  if (bytes.size() >= 2 && bytes[bytes.size() - 2] == '\xED' &&
      static_cast<uint8_t>(bytes.back()) >= 0xA0 && static_cast<uint8_t>(bytes.back()) <= 0xBF) {
    return 2;
  }
  for (size_t tail = std::min<size_t>(3, bytes.size()); tail > 0; --tail) {
    std::string_view part = bytes.substr(bytes.size() - tail);
    auto lead = static_cast<uint8_t>(part[0]);
    if (!U8_IS_LEAD(lead)) continue;
    bool valid;
    // Incomplete: nothing but a longer text could make it valid, that is the maximal part takes all
    // of it.
    if (SequenceLength(part, &valid) == tail && !valid &&
        U8_COUNT_TRAIL_BYTES(lead) >= static_cast<int>(tail))
      return tail;
  }
  return 0;
}

char32_t NextUtf8(std::string_view text, size_t* pos) {
  UChar32 c;
  U8_NEXT_UNSAFE(reinterpret_cast<const uint8_t*>(text.data()), *pos, c);
  return static_cast<char32_t>(c);
}

char32_t PreviousUtf8(std::string_view text, size_t* pos) {
  UChar32 c;
  U8_PREV_UNSAFE(reinterpret_cast<const uint8_t*>(text.data()), *pos, c);
  return static_cast<char32_t>(c);
}

void AppendUtf8(char32_t c, std::string* text) {
  uint8_t buffer[U8_MAX_LENGTH];
  int length = 0;
  U8_APPEND_UNSAFE(buffer, length, static_cast<UChar32>(c));
  text->append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(length));
}

bool IsUnicodeSpace(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)); }

}  // namespace kt
