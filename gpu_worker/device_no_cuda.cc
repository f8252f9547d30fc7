// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"
#include "gpu_worker/device_cuda.h"

namespace kt {

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index, size_t) {
  return FailedPrecondition(
      "device cuda:{}: built without CUDA; install the CUDA toolkit and build again, or use the "
      "host device",
      index);
}

}  // namespace kt
