// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back: byte-level BPE of a Hugging Face tokenizer.json, with the results of
// HF tokenizers.
#ifndef KT_COORDINATOR_TOKENIZER_TOKENIZER_H_
#define KT_COORDINATOR_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kt {

// Immutable after loading, safe for concurrent use.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // A model directory (tokenizer.json, tokenizer_config.json) or a tokenizer.json. Errors name the
  // file, the field and what is supported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);

  // Special and added tokens in the text are recognised; no BOS or EOS is added. Invalid UTF-8:
  // InvalidArgument. `text_bytes_max` is the caller's business; time is linear in the text but for
  // the BPE of one pre-token, which is n log n.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const = 0;
  // Ids outside the vocabulary decode to nothing. Invalid bytes become U+FFFD (maximal subparts).
  virtual std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const = 0;
  // Raw bytes of one token (may be part of a character); empty for ids outside the vocabulary.
  virtual std::string TokenBytes(int32_t id) const = 0;

  virtual int32_t vocab_size() const = 0;  // highest id + 1
  virtual bool IsSpecial(int32_t id) const = 0;
  virtual std::optional<int32_t> TokenId(
      std::string_view token) const = 0;  // of the vocabulary's spelling, e.g. "<|im_end|>"
};

// Turns a stream of ids into text that never splits a character: bytes of an incomplete UTF-8
// sequence are held back.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}
  std::string Push(int32_t id);  // text that is complete now
  std::string Flush();           // what is left, invalid bytes as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::string pending_;
};

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_TOKENIZER_H_
