// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "coordinator/tokenizer/utf8.h"

namespace kt {
namespace {

constexpr int16_t kNotAByte = -1;
constexpr int kAlphabetEnd =
    0x100 + 68;  // 68 byte values are not printable Latin-1; they are spelled U+0100, U+0101, ...

constexpr bool IsPrintableLatin1(int c) {
  return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xFF && c != 0xAD);
}

constexpr std::array<int16_t, kAlphabetEnd> MakeByteOfChar() {
  std::array<int16_t, kAlphabetEnd> byte_of_char{};
  for (int16_t& byte : byte_of_char) byte = kNotAByte;
  int next = 0x100;
  for (int16_t byte = 0; byte < 256; ++byte)
    byte_of_char[IsPrintableLatin1(byte) ? byte : next++] = byte;
  return byte_of_char;
}

constexpr std::array<int16_t, kAlphabetEnd> kByteOfChar = MakeByteOfChar();

}  // namespace

std::optional<std::string> BytesOfSpelling(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t i = 0; i < spelling.size();) {
    char32_t c = NextUtf8(spelling, &i);
    if (c >= kByteOfChar.size() || kByteOfChar[c] == kNotAByte) return std::nullopt;
    bytes.push_back(static_cast<char>(kByteOfChar[c]));
  }
  return bytes;
}

}  // namespace kt
