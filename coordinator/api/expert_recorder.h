// SPDX-License-Identifier: Apache-2.0
// What /start_, /stop_ and /dump_expert_distribution_record act on; implemented by the coordinator.
#ifndef KT_COORDINATOR_API_EXPERT_RECORDER_H_
#define KT_COORDINATOR_API_EXPERT_RECORDER_H_

#include <string>

#include "absl/status/statusor.h"

namespace kt::api {

// Thread-safe. Start and Stop return at once; Dump writes a file.
class ExpertRecorder {
 public:
  virtual ~ExpertRecorder() = default;
  virtual void StartRecord() = 0;  // forgets what was recorded before
  virtual void StopRecord() = 0;
  // Writes what was recorded to a new file, forgets it, and gives the file's path.
  // FailedPrecondition: nothing was recorded. Unavailable: the file cannot be written.
  virtual absl::StatusOr<std::string> DumpRecord() = 0;
};

}  // namespace kt::api

#endif  // KT_COORDINATOR_API_EXPERT_RECORDER_H_
