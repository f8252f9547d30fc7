// SPDX-License-Identifier: Apache-2.0
// ApiRequest → PreparedCall: renders the template, tokenizes, and resolves the number of tokens
// against the context.
#ifndef KT_COORDINATOR_API_PREPARE_H_
#define KT_COORDINATOR_API_PREPARE_H_

#include "absl/status/statusor.h"
#include "coordinator/api/request.h"
#include "coordinator/template/prompt_renderer.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace kt::api {

inline constexpr int kCompletionTokensDefault = 16;

// Text → ids. Text that cannot fit the context, however it is tokenized, is refused before that
// work is done (`token_bytes_max`: bytes of the longest token). InvalidArgument: not UTF-8, empty,
// with a token that the model lacks, or too long (context_length_exceeded, with both numbers).
absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& text, std::string_view param,
                                              const Tokenizer& tokenizer, const ModelFacts& facts,
                                              size_t token_bytes_max);

// Errors of the template are InvalidArgument with code chat_template_error, but Unavailable when
// its helper cannot be started.
absl::StatusOr<std::string> RenderPrompt(const ApiRequest& request, PromptRenderer& renderer);

// Blocking: renders and tokenizes. Any thread.
absl::StatusOr<PreparedCall> Prepare(ApiRequest request, PromptRenderer& renderer,
                                     const Tokenizer& tokenizer, const ModelFacts& facts,
                                     size_t token_bytes_max);

// Bytes of the longest token of the vocabulary.
size_t LongestTokenBytes(const Tokenizer& tokenizer);

}  // namespace kt::api

#endif  // KT_COORDINATOR_API_PREPARE_H_
