// SPDX-License-Identifier: Apache-2.0
#ifndef KT_KERNELS_CUDA_ROPE_H_
#define KT_KERNELS_CUDA_ROPE_H_

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "kernels/cpu/rope/rope.h"

namespace kt::cuda {

// kernels/cpu/rope/rope.h on the device: the same arguments, all pointers to device memory. One
// block per token.
absl::Status ApplyRope(const RopeArgs& args, cudaStream_t stream);

}  // namespace kt::cuda

#endif  // KT_KERNELS_CUDA_ROPE_H_
