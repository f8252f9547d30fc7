// SPDX-License-Identifier: Apache-2.0
#ifndef KT_KERNELS_CUDA_RMS_NORM_H_
#define KT_KERNELS_CUDA_RMS_NORM_H_

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "kernels/cpu/norm/norm.h"

namespace kt::cuda {

// kernels/cpu/norm/norm.h on the device: the same arguments, all pointers to device memory. One
// block per vector.
absl::Status RmsNorm(const RmsNormArgs& args, cudaStream_t stream);

}  // namespace kt::cuda

#endif  // KT_KERNELS_CUDA_RMS_NORM_H_
