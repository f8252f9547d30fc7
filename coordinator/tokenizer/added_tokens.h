// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_TOKENIZER_ADDED_TOKENS_H_
#define KT_COORDINATOR_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/base/json.h"

namespace kt {

// A token that is found in the text before anything else looks at it.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // left out of decoded text on request
  bool normalized = false;   // found in the normalised text, not in the text as given
  bool lstrip = false;       // takes the spaces before it
  bool rstrip = false;       // takes the spaces behind it
  bool single_word = false;  // only where no word character adjoins

  // The flags and content of `json`; the id is the caller's.
  static absl::StatusOr<AddedToken> FromJson(const Json& json, std::string_view where);
};

// Finds added tokens, leftmost first, the longest where several begin. Filled once, then immutable.
class AddedTokenFinder {
 public:
  AddedTokenFinder() { first_.fill(0); }

  // `text` is what is looked for: the content, or its normalised form.
  void Add(std::string_view text, AddedToken token);

  struct Section {
    std::string_view text;
    const AddedToken* token;  // nullptr: text between tokens, never empty
  };
  std::vector<Section> Split(std::string_view text) const;

 private:
  // Index into tokens_ of the longest token at the start of `text`, and its length; -1: none.
  int32_t Longest(std::string_view text, size_t* length) const;

  std::vector<AddedToken> tokens_;
  // A trie. Node 0 is the root, whose edges lie in first_ (0: none); other edges have the key (node
  // << 8 | byte).
  std::array<int32_t, 256> first_;
  absl::flat_hash_map<uint64_t, int32_t> edges_;
  std::vector<int32_t> token_of_node_ = {-1};
};

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_ADDED_TOKENS_H_
