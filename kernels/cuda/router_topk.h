// SPDX-License-Identifier: Apache-2.0
#ifndef KT_KERNELS_CUDA_ROUTER_TOPK_H_
#define KT_KERNELS_CUDA_ROUTER_TOPK_H_

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "kernels/cpu/router/router.h"

namespace kt::cuda {

// kernels/cpu/router/router.h on the device: the same arguments, all pointers to device memory. One
// warp per token. Limits beside the host's: top_k and groups at most kRouterLanes. InvalidArgument
// names what is out of range.
constexpr int kRouterLanes = 32;
absl::Status RouterTopk(const RouterTopkArgs& args, cudaStream_t stream);

}  // namespace kt::cuda

#endif  // KT_KERNELS_CUDA_ROUTER_TOPK_H_
