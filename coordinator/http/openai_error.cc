// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/openai_error.h"

#include "common/base/json.h"
#include "coordinator/api/api_error.h"

namespace kt::http {
namespace {

using Code = absl::StatusCode;

constexpr char kInvalidRequest[] = "invalid_request_error";
constexpr char kServer[] = "server_error";

constexpr ErrorRow kTable[] = {
    {"invalid_value", Code::kInvalidArgument, 400, kInvalidRequest, 0},
    {api::kUnsupportedParameter, Code::kInvalidArgument, 400, kInvalidRequest, 0},
    {api::kContextLengthExceeded, Code::kInvalidArgument, 400, kInvalidRequest, 0},
    {api::kInvalidJson, Code::kInvalidArgument, 400, kInvalidRequest, 0},
    {api::kTemplateError, Code::kInvalidArgument, 400, kInvalidRequest, 0},
    {api::kInvalidHttp, Code::kInvalidArgument, 400, kInvalidRequest, 0},
    {api::kBodyTooLarge, Code::kInvalidArgument, 413, kInvalidRequest, 0},
    {api::kHeaderTooLarge, Code::kInvalidArgument, 431, kInvalidRequest, 0},
    {"out_of_range", Code::kOutOfRange, 400, kInvalidRequest, 0},
    {"failed_precondition", Code::kFailedPrecondition, 400, kInvalidRequest, 0},
    {"invalid_api_key", Code::kUnauthenticated, 401, kInvalidRequest, 0},
    {"permission_denied", Code::kPermissionDenied, 403, "permission_error", 0},
    {"not_found", Code::kNotFound, 404, kInvalidRequest, 0},
    {api::kModelNotFound, Code::kNotFound, 404, kInvalidRequest, 0},
    {api::kPathNotFound, Code::kNotFound, 404, kInvalidRequest, 0},
    {"unimplemented", Code::kUnimplemented, 501, kServer, 0},
    {api::kMethodNotAllowed, Code::kUnimplemented, 405, kInvalidRequest, 0},
    {"request_id_in_use", Code::kAlreadyExists, 409, kInvalidRequest, 0},
    {"queue_full", Code::kResourceExhausted, 429, "rate_limit_error", 1},
    {"cancelled", Code::kCancelled, 499, kInvalidRequest, 0},
    {"unavailable", Code::kUnavailable, 503, kServer, 5},
    {api::kOverloaded, Code::kUnavailable, 503, kServer, 1},
    {"aborted", Code::kAborted, 503, kServer, 1},
    {"deadline_exceeded", Code::kDeadlineExceeded, 504, kServer, 0},
    {api::kRequestTimeout, Code::kDeadlineExceeded, 408, kInvalidRequest, 0},
    {"internal_error", Code::kInternal, 500, kServer, 0},
    {"unknown", Code::kUnknown, 500, kServer, 0},
    {"data_loss", Code::kDataLoss, 500, kServer, 0},
};

}  // namespace

std::span<const ErrorRow> ErrorTable() { return kTable; }

const ErrorRow& FindErrorRow(const absl::Status& status) {
  const std::string code = api::ErrorCode(status);
  for (const ErrorRow& row : kTable) {
    if (code.empty() ? row.status == status.code() : row.code == code) return row;
  }
  return FindErrorRow(absl::InternalError(""));  // a code that is in no row; internal_error is
}

std::string ErrorBody(const absl::Status& status) {
  const ErrorRow& row = FindErrorRow(status);
  const std::string param = api::ErrorParam(status);
  return DumpJson({{"error",
                    {{"message", Message(status)},
                     {"type", row.type},
                     {"param", param.empty() ? Json() : Json(param)},
                     {"code", row.code}}}});
}

}  // namespace kt::http
