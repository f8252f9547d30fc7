// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_SCHEDULER_TESTING_FAKE_TOKENIZER_H_
#define KT_COORDINATOR_SCHEDULER_TESTING_FAKE_TOKENIZER_H_

#include <algorithm>
#include <array>
#include <string>

#include "common/base/status.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace kt::testing {

// 32 tokens that overlap in many ways, among them the two bytes of an e with acute accent. Token 0
// is special and ends the output.
class FakeTokenizer final : public Tokenizer {
 public:
  static constexpr int kVocab = 32;
  static constexpr int32_t kEos = 0;
  static constexpr int32_t kFirstByte = 21, kSecondByte = 22;

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (char c : text) {
      const auto id = TokenId(std::string(1, c));
      if (!id) return InvalidArgument("no token for byte {}", c);
      ids.push_back(*id);
    }
    return ids;
  }
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const override {
    StreamDecoder decoder(this, skip_special_tokens);
    std::string text;
    for (int32_t id : ids) text += decoder.Push(id);
    return text + decoder.Flush();
  }
  std::string TokenBytes(int32_t id) const override {
    return id < 0 || id >= kVocab ? "" : kTokens[id];
  }
  int32_t vocab_size() const override { return kVocab; }
  bool IsSpecial(int32_t id) const override { return id == kEos; }
  std::optional<int32_t> TokenId(std::string_view token) const override {
    const auto it = std::find(kTokens.begin(), kTokens.end(), token);
    if (it == kTokens.end()) return std::nullopt;
    return static_cast<int32_t>(it - kTokens.begin());
  }

 private:
  static constexpr std::array<const char*, kVocab> kTokens = {
      "</s>", "a",        "b", "c",  "ab", "ba",  "abc", "ca", "bb",  "aab",  "cab",
      "d",    "e",        "f", "de", "ef", "def", " ",   "\n", "a b", "c\na", "\xC3",
      "\xA9", "\xC3\xA9", "g", "h",  "gh", "hg",  "ggh", "x",  "y",   "z"};
};

}  // namespace kt::testing

#endif  // KT_COORDINATOR_SCHEDULER_TESTING_FAKE_TOKENIZER_H_
