// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_status.h"

#include "common/base/status.h"

namespace kt {
namespace {

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
      return absl::StatusCode::kInvalidArgument;
    case cudaErrorNoDevice:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return MakeStatus(CodeOf(error), "{}: CUDA error {}: {}", what, static_cast<int>(error),
                    cudaGetErrorString(error));
}

}  // namespace kt
