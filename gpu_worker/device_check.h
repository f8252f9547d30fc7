// SPDX-License-Identifier: Apache-2.0
// The device's operations against those of the scalar reference, layer by layer on fixed inputs
// (worker/self_check.h). Takes memory of its own: a cache of one block and the workspaces.
#ifndef KT_GPU_WORKER_DEVICE_CHECK_H_
#define KT_GPU_WORKER_DEVICE_CHECK_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/weights/weight_summary.h"
#include "gpu_worker/dense_weights.h"
#include "gpu_worker/ops_host.h"
#include "worker/self_check.h"

namespace kt {

struct DeviceCheck {
  const ModelConfig* config;
  const DenseWeights* dense;
  const WeightSummary* summary;
  Device* device;
  HostOpsOptions ops;  // of the device; the sizes are the check's own
  bool all_layers;     // false: the first layer of each kind, and no head
};
absl::StatusOr<std::vector<SelfCheckRow>> CheckDevice(const DeviceCheck& check, Parallel& parallel);

}  // namespace kt

#endif  // KT_GPU_WORKER_DEVICE_CHECK_H_
