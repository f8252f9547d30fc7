// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_TOKENIZER_TOKENIZER_JSON_H_
#define KT_COORDINATOR_TOKENIZER_TOKENIZER_JSON_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/json.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace kt {

// Reads a Hugging Face tokenizer.json. `config` is the tokenizer_config.json beside it or null: its
// added_tokens_decoder adds tokens and overrides flags, as in transformers. Messages name field,
// value and what is supported.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTokenizerJson(std::string_view text,
                                                              const Json& config);
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(const std::string& path,
                                                             const Json& config);

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_TOKENIZER_JSON_H_
