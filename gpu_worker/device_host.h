// SPDX-License-Identifier: Apache-2.0
#ifndef KT_GPU_WORKER_DEVICE_HOST_H_
#define KT_GPU_WORKER_DEVICE_HOST_H_

#include <memory>

#include "gpu_worker/device.h"

namespace kt {

// The CPU as a device: private memory under a cap (0: none), copies at memory speed or slowed to
// copy_gbps (0: not slowed; between the memories of host and device) so that transfers cost the
// time they would on a bus, asleep. Work of the default stream is done when the call returns; every
// other stream has a thread that works through its copies and waits.
std::unique_ptr<Device> MakeHostDevice(size_t memory_bytes_max, double copy_gbps);

}  // namespace kt

#endif  // KT_GPU_WORKER_DEVICE_HOST_H_
