// SPDX-License-Identifier: Apache-2.0
// What an error tells a client beside its message: a stable code and the request field. Both travel
// inside absl::Status; coordinator/http/openai_error turns them into HTTP, docs/errors.md lists the
// codes.
#ifndef KT_COORDINATOR_API_API_ERROR_H_
#define KT_COORDINATOR_API_API_ERROR_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/status.h"

namespace kt::api {

// Stable codes that are not the default of their absl::StatusCode.
inline constexpr char kUnsupportedParameter[] = "unsupported_parameter";
inline constexpr char kContextLengthExceeded[] = "context_length_exceeded";
inline constexpr char kModelNotFound[] = "model_not_found";
inline constexpr char kInvalidJson[] = "invalid_json";
inline constexpr char kTemplateError[] = "chat_template_error";
inline constexpr char kOverloaded[] = "overloaded";
inline constexpr char kPathNotFound[] = "path_not_found";
inline constexpr char kMethodNotAllowed[] = "method_not_allowed";
inline constexpr char kBodyTooLarge[] = "body_too_large";
inline constexpr char kHeaderTooLarge[] = "header_too_large";
inline constexpr char kRequestTimeout[] = "request_timeout";
inline constexpr char kInvalidHttp[] = "invalid_http";

// Copies of `status` with the code or the field attached; an empty one attaches nothing.
absl::Status WithCode(absl::Status status, std::string_view code);
absl::Status WithParam(absl::Status status, std::string_view param);

// Empty where none was attached.
std::string ErrorCode(const absl::Status& status);
std::string ErrorParam(const absl::Status& status);

// InvalidArgument about one field of the request; the message begins with the field.
template <typename... Args>
absl::Status FieldError(std::string_view param, fmt::format_string<Args...> format,
                        Args&&... args) {
  std::string text = fmt::format(format, std::forward<Args>(args)...);
  return WithParam(InvalidArgument("{} {}", param, text), param);
}

}  // namespace kt::api

#endif  // KT_COORDINATOR_API_API_ERROR_H_
