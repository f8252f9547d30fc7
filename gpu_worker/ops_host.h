// SPDX-License-Identifier: Apache-2.0
#ifndef KT_GPU_WORKER_OPS_HOST_H_
#define KT_GPU_WORKER_OPS_HOST_H_

#include <memory>

#include "common/base/parallel.h"
#include "gpu_worker/device.h"
#include "gpu_worker/ops.h"
#include "kernels/cpu/features/cpu_features.h"

namespace kt {

struct HostOpsOptions {
  Isa isa = Isa::kScalar;
  bool bf16 = true;           // activation type
  int block_tokens = 16;      // of the KV cache
  int tokens_max = 0;         // rows of a call
  int position_max = 0;       // positions are below it
  int linear_width = 0;       // n of the widest Linear
  bool deterministic = true;  // false: other forms where prompts are long
};

// The operations on the CPU. `parallel` outlives them; scratch comes from the device's memory.
absl::StatusOr<std::unique_ptr<Ops>> MakeHostOps(const HostOpsOptions& options,
                                                 const ModelConfig& config, Device& device,
                                                 Parallel& parallel);

}  // namespace kt

#endif  // KT_GPU_WORKER_OPS_HOST_H_
