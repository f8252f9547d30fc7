// SPDX-License-Identifier: Apache-2.0
#ifndef KT_GPU_WORKER_DEVICE_CUDA_H_
#define KT_GPU_WORKER_DEVICE_CUDA_H_

#include <memory>

#include "gpu_worker/device.h"

namespace kt {

// GPU `index` of this process's visible ones. Device memory is capped to memory_bytes_max (0: what
// was free at the start); host memory is page-locked and does not count. Streams run beside each
// other and beside the caller. Unavailable: no such GPU. FailedPrecondition: this program was built
// without CUDA (device_no_cuda.cc).
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index, size_t memory_bytes_max);

}  // namespace kt

#endif  // KT_GPU_WORKER_DEVICE_CUDA_H_
