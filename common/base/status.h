// SPDX-License-Identifier: Apache-2.0
// Status helpers. A message begins with the operation or field and ends with the values; errors
// that a user can mend say how.
#ifndef KT_COMMON_BASE_STATUS_H_
#define KT_COMMON_BASE_STATUS_H_

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define KT_CONCAT_INNER_(a, b) a##b
#define KT_CONCAT_(a, b) KT_CONCAT_INNER_(a, b)

#define KT_RETURN_IF_ERROR(expr)                                               \
  do {                                                                         \
    if (absl::Status kt_status_ = (expr); !kt_status_.ok()) return kt_status_; \
  } while (false)

// KT_ASSIGN_OR_RETURN(auto x, F());
#define KT_ASSIGN_OR_RETURN(lhs, expr) \
  KT_ASSIGN_OR_RETURN_(KT_CONCAT_(kt_statusor_, __LINE__), lhs, expr)
#define KT_ASSIGN_OR_RETURN_(tmp, lhs, expr)     \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = std::move(tmp).value()

namespace kt {

template <typename... Args>
absl::Status MakeStatus(absl::StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return absl::Status(code, fmt::format(format, std::forward<Args>(args)...));
}

#define KT_STATUS_FACTORY_(Name)                                                       \
  template <typename... Args>                                                          \
  absl::Status Name(fmt::format_string<Args...> format, Args&&... args) {              \
    return MakeStatus(absl::StatusCode::k##Name, format, std::forward<Args>(args)...); \
  }
KT_STATUS_FACTORY_(InvalidArgument)
KT_STATUS_FACTORY_(NotFound)
KT_STATUS_FACTORY_(AlreadyExists)
KT_STATUS_FACTORY_(FailedPrecondition)
KT_STATUS_FACTORY_(OutOfRange)
KT_STATUS_FACTORY_(ResourceExhausted)
KT_STATUS_FACTORY_(Unavailable)
KT_STATUS_FACTORY_(DeadlineExceeded)
KT_STATUS_FACTORY_(Unimplemented)
KT_STATUS_FACTORY_(Internal)
KT_STATUS_FACTORY_(DataLoss)
KT_STATUS_FACTORY_(PermissionDenied)
KT_STATUS_FACTORY_(Unauthenticated)
KT_STATUS_FACTORY_(Cancelled)
KT_STATUS_FACTORY_(Aborted)
#undef KT_STATUS_FACTORY_

// The message of a status as std::string (Debian's absl::string_view is not std::string_view).
inline std::string Message(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

// Puts `context` in front of the message and keeps the code.
inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), fmt::format("{}: {}", context, Message(status)));
}

}  // namespace kt

#endif  // KT_COMMON_BASE_STATUS_H_
