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
#include "common/base/json.h"
#include "coordinator/tokenizer/added_tokens.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace kt {

// The tokens besides the `base` ones of the file.
using AddedTokensOf = std::function<absl::StatusOr<std::vector<AddedToken>>(int32_t base)>;

// `text` is the file, `pattern` splits what is encoded. InvalidArgument names line or token.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTiktoken(std::string_view text,
                                                         std::string_view pattern,
                                                         const AddedTokensOf& added_tokens);

// tiktoken.model of a Kimi model; its split pattern is not in the model's files but in its code, as
// are the 256 ids behind those of the file. `config` is tokenizer_config.json, which names some of
// them; a name for any other id is an error.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseKimiTiktoken(std::string_view text,
                                                             const Json& config);

// The same from a file; errors begin with the path.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTiktoken(const std::string& path,
                                                        std::string_view pattern,
                                                        const AddedTokensOf& added_tokens);
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadKimiTiktoken(const std::string& path,
                                                            const Json& config);

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_TIKTOKEN_H_
