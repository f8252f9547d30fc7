// SPDX-License-Identifier: Apache-2.0
// Exit codes of every program here; docs/errors.md has the same table.
#ifndef KT_COMMON_BASE_EXIT_CODE_H_
#define KT_COMMON_BASE_EXIT_CODE_H_

#include "absl/status/status.h"

namespace kt {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,
  kExitUsage = 2,     // a flag, its value or a configuration
  kExitBadModel = 3,  // model directory or checkpoint
  kExitPort = 4,      // the address cannot be listened on
  kExitOutOfMemory = 5,
  kExitHardware = 6,  // CPU or GPU lacks what was asked for
  kExitInterrupted = 130,
};

// Code of a worker or server that failed to start: by then flags have been checked, so a bad value
// or missing file means the model.
inline int ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kDataLoss:
      return kExitBadModel;
    case absl::StatusCode::kResourceExhausted:
      return kExitOutOfMemory;
    case absl::StatusCode::kUnimplemented:
      return kExitHardware;
    default:
      return kExitFailure;
  }
}

}  // namespace kt

#endif  // KT_COMMON_BASE_EXIT_CODE_H_
