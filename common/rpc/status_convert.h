// SPDX-License-Identifier: Apache-2.0
// The only place where absl and gRPC statuses meet.
#ifndef KT_COMMON_RPC_STATUS_CONVERT_H_
#define KT_COMMON_RPC_STATUS_CONVERT_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace kt {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace kt

#endif  // KT_COMMON_RPC_STATUS_CONVERT_H_
