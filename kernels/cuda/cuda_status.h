// SPDX-License-Identifier: Apache-2.0
#ifndef KT_KERNELS_CUDA_CUDA_STATUS_H_
#define KT_KERNELS_CUDA_CUDA_STATUS_H_

#include <cuda_runtime.h>

#include <string>

#include "absl/status/status.h"

namespace kt {

// The only conversion of CUDA's errors: "what: CUDA error 719: unspecified launch failure".
// ResourceExhausted for memory, InvalidArgument for arguments and launch shapes, Unavailable where
// there is no device, Internal for the rest.
absl::Status CudaStatus(cudaError_t error, const std::string& what);

}  // namespace kt

#endif  // KT_KERNELS_CUDA_CUDA_STATUS_H_
