// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/status_convert.h"

#include "common/base/status.h"

namespace kt {

// Both enumerations have the same values by definition.
grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Message(status));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace kt
