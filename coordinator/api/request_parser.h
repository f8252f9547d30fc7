// SPDX-License-Identifier: Apache-2.0
// JSON of the OpenAI endpoints → ApiRequest. Pure; every field is checked here once, for HTTP and
// gRPC alike.
//
// Errors  InvalidArgument with param and code (api_error.h), naming field, value and range. Fields
// that are known but not served in
//         this release are refused by name; unknown ones are ignored, as OpenAI does.
#ifndef KT_COORDINATOR_API_REQUEST_PARSER_H_
#define KT_COORDINATOR_API_REQUEST_PARSER_H_

#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "coordinator/api/request.h"

namespace kt::api {

inline constexpr int kChoicesMax = 128;       // n
inline constexpr int kPromptsMax = 1024;      // prompts of one completion request
inline constexpr int kCallChoicesMax = 2048;  // n times prompts
inline constexpr int kTopLogprobsMax = 20;
inline constexpr size_t kStopStringsMax = 16;
inline constexpr size_t kStopBytesMax = 1000;  // of one stop string
inline constexpr size_t kStopTokensMax = 1024;
inline constexpr size_t kRequestIdBytesMax = 128;
inline constexpr size_t kJsonValuesMax =
    1 << 21;  // of one body: bounds the memory that parsing it takes

// Parses `body` as a JSON object and hands it to `read`. NaN, Infinity and numbers beyond double
// are no JSON, but `read` gets to see them as strings first, so that the error names the field that
// holds one.
absl::Status ReadBody(std::string_view body, const std::function<absl::Status(const Json&)>& read);

absl::StatusOr<ApiRequest> ReadChatRequest(const Json& body, const ModelFacts& facts,
                                           const ApiDefaults& defaults);
absl::StatusOr<ApiRequest> ReadCompletionRequest(const Json& body, const ModelFacts& facts,
                                                 const ApiDefaults& defaults);

// ReadBody with one of the above.
absl::StatusOr<ApiRequest> ParseRequest(Endpoint endpoint, std::string_view body,
                                        const ModelFacts& facts, const ApiDefaults& defaults);

// A string, a list of strings, a list of ids or a list of lists of ids.
absl::StatusOr<std::vector<Prompt>> ReadPrompts(const Json& value, std::string_view param,
                                                int vocab_size);

}  // namespace kt::api

#endif  // KT_COORDINATOR_API_REQUEST_PARSER_H_
