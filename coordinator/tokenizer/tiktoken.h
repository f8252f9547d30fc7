// SPDX-License-Identifier: Apache-2.0
// Vocabularies in tiktoken's form: one line per token, its bytes in base64 and its rank, which is
// its id.
#ifndef KT_COORDINATOR_TOKENIZER_TIKTOKEN_H_
#define KT_COORDINATOR_TOKENIZER_TIKTOKEN_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/tokenizer/added_tokens.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace kt {

// `pattern` splits the text; `added_tokens(n)` gives the tokens besides the n of the file. Errors
// begin with the path.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTiktoken(
    const std::string& path, std::string_view pattern,
    const std::function<std::vector<AddedToken>(int32_t)>& added_tokens);

// tiktoken.model of a Kimi model; its split pattern is not in the model's files but in its code.
// `config` is tokenizer_config.json.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadKimiTiktoken(const std::string& path,
                                                            const Json& config);

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_TIKTOKEN_H_
