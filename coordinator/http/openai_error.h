// SPDX-License-Identifier: Apache-2.0
// absl::Status → HTTP, in OpenAI's error shape: the only such table. docs/errors.md lists it.
#ifndef KT_COORDINATOR_HTTP_OPENAI_ERROR_H_
#define KT_COORDINATOR_HTTP_OPENAI_ERROR_H_

#include <span>
#include <string>

#include "absl/status/status.h"

namespace kt::http {

struct ErrorRow {
  const char* code;         // stable; "code" of the answer
  absl::StatusCode status;  // of it the first row is the default
  int http_status;
  const char* type;   // "type" of the answer
  int retry_after_s;  // Retry-After; 0: none
};

std::span<const ErrorRow> ErrorTable();

// The row of the code attached to `status` (api_error.h), else the default of its absl::StatusCode.
const ErrorRow& FindErrorRow(const absl::Status& status);

// {"error": {"message", "type", "param", "code"}}
std::string ErrorBody(const absl::Status& status);

}  // namespace kt::http

#endif  // KT_COORDINATOR_HTTP_OPENAI_ERROR_H_
