// SPDX-License-Identifier: Apache-2.0
#ifndef KT_GPU_WORKER_COPY_EXPERTS_H_
#define KT_GPU_WORKER_COPY_EXPERTS_H_

#include <span>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "gpu_worker/device.h"
#include "worker/expert_layout.h"

namespace kt {

// Issues copies from the host's memory to the device's.
inline absl::Status CopyRuns(std::span<const CopyRun> runs, const uint8_t* source, uint8_t* target,
                             StreamId stream, Device& device) {
  for (const CopyRun& run : runs) {
    KT_RETURN_IF_ERROR(device.CopyRowsAsync({.target = target + run.target,
                                             .source = source + run.source,
                                             .bytes = run.bytes,
                                             .rows = run.rows,
                                             .target_stride = run.target_stride,
                                             .source_stride = run.source_stride},
                                            CopyKind::kHostToDevice, stream));
  }
  return absl::OkStatus();
}

}  // namespace kt

#endif  // KT_GPU_WORKER_COPY_EXPERTS_H_
