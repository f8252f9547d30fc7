// SPDX-License-Identifier: Apache-2.0
// The alphabet in which byte-level vocabularies are spelled: one printable character for each of
// the 256 byte values.
#ifndef KT_COORDINATOR_TOKENIZER_BYTE_ALPHABET_H_
#define KT_COORDINATOR_TOKENIZER_BYTE_ALPHABET_H_

#include <optional>
#include <string>
#include <string_view>

namespace kt {

// "Ġthe" -> " the". nullopt when a character is not of the alphabet. The spelling is valid UTF-8.
std::optional<std::string> BytesOfSpelling(std::string_view spelling);

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_BYTE_ALPHABET_H_
