// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/api_error.h"

#include "absl/strings/cord.h"

namespace kt::api {
namespace {

constexpr char kCodeUrl[] = "kt.api/code";
constexpr char kParamUrl[] = "kt.api/param";

absl::Status With(absl::Status status, const char* url, std::string_view value) {
  if (!value.empty())
    status.SetPayload(url, absl::Cord(absl::string_view(value.data(), value.size())));
  return status;
}

std::string Read(const absl::Status& status, const char* url) {
  auto value = status.GetPayload(url);
  return value ? std::string(*value) : std::string();
}

}  // namespace

absl::Status WithCode(absl::Status status, std::string_view code) {
  return With(std::move(status), kCodeUrl, code);
}
absl::Status WithParam(absl::Status status, std::string_view param) {
  return With(std::move(status), kParamUrl, param);
}
std::string ErrorCode(const absl::Status& status) { return Read(status, kCodeUrl); }
std::string ErrorParam(const absl::Status& status) { return Read(status, kParamUrl); }

}  // namespace kt::api
