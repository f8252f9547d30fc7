// SPDX-License-Identifier: Apache-2.0
// The tokenizer that every loader ends in: added tokens, normaliser, pre-tokenizer, BPE over bytes.
#ifndef KT_COORDINATOR_TOKENIZER_BPE_TOKENIZER_H_
#define KT_COORDINATOR_TOKENIZER_BPE_TOKENIZER_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "coordinator/tokenizer/added_tokens.h"
#include "coordinator/tokenizer/bpe.h"
#include "coordinator/tokenizer/normalizer.h"
#include "coordinator/tokenizer/pre_tokenizer.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace kt {

class BpeTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kIdMax = (1 << 20) - 1;

  BpeTokenizer(Normalizer normalizer, PreTokenizer pre_tokenizer)
      : normalizer_(std::move(normalizer)), pre_tokenizer_(std::move(pre_tokenizer)) {}

  // Loading, in this order: the vocabulary, then bpe()'s options and merges, then added tokens.
  // Errors name token and id. `spelling` as in tokenizer.json; one outside the byte alphabet is
  // known by its name only, BPE cannot make it.
  absl::Status AddSpelledToken(const std::string& spelling, int32_t id);
  absl::Status AddByteToken(std::string bytes, int32_t id);
  absl::Status AddAddedTokens(std::vector<AddedToken> tokens);
  Bpe& bpe() { return bpe_; }

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const override;
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;
  std::string TokenBytes(int32_t id) const override;
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  bool IsSpecial(int32_t id) const override;
  std::optional<int32_t> TokenId(std::string_view token) const override;

 private:
  struct Token {
    bool used = false;
    bool special = false;
    std::string bytes;
  };
  absl::StatusOr<Token*> NewToken(std::string_view name, int32_t id);
  const Token* Find(int32_t id) const;

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  std::vector<Token> tokens_;  // by id
  absl::flat_hash_map<std::string, int32_t>
      ids_by_name_;  // added tokens, and others outside the byte alphabet
  AddedTokenFinder raw_added_tokens_, normalized_added_tokens_;
};

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_BPE_TOKENIZER_H_
