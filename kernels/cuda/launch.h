// SPDX-License-Identifier: Apache-2.0
// How kernels are written and started. A kernel source includes this file only and is compiled by
// nvcc for GPUs and by the host compiler against shim/ for tests:
//
//   template <typename T>
//   KT_KERNEL void Kernel(GlobalPointer<const T> x, int n) { KT_SHARED(float, partial, 8); ... }
//   Launch("name", blocks, threads, stream, Kernel<float>, x, n);
//
// GlobalPointer is a raw pointer on a GPU and checked in the shim; element type and count of shared
// arrays are constants.
#ifndef KT_KERNELS_CUDA_LAUNCH_H_
#define KT_KERNELS_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/bf16.h"
#include "kernels/cuda/cuda_status.h"

#if defined(__CUDACC__)
#define KT_KERNEL __global__
#define KT_DEVICE __device__
#define KT_SHARED(T, name, count) __shared__ T name[count]
#else
#define KT_KERNEL static
#define KT_DEVICE
#define KT_SHARED(T, name, count) const kt::shim::SharedArray<T, count> name
#endif

namespace kt::cuda {

#if defined(__CUDACC__)
template <typename T>
using GlobalPointer = T*;
template <typename T, int kCount>
using SharedArray = T (&)[kCount];
#else
using shim::GlobalPointer;
template <typename T, int kCount>
using SharedArray = const shim::SharedArray<T, kCount>&;
#endif

// The one place where a kernel is started. `name` is a literal; it begins the message of a refused
// launch. A fault of the kernel itself surfaces where the stream is waited for.
template <typename... Params, typename... Args>
absl::Status Launch(const char* name, int64_t blocks, int threads, cudaStream_t stream,
                    void (*kernel)(Params...), Args... args) {
#if defined(__CUDACC__)
  kernel<<<dim3(static_cast<unsigned>(blocks)), threads, 0, stream>>>(static_cast<Params>(args)...);
  return CudaStatus(cudaGetLastError(), name);
#else
  return CudaStatus(shim::EnqueueKernel({name, dim3(static_cast<unsigned>(blocks)), threads},
                                        stream, [=] { kernel(static_cast<Params>(args)...); }),
                    name);
#endif
}

// Activations are widened when read and rounded to nearest even when stored, as common/base/bf16.h
// defines.
KT_DEVICE inline float Widen(float x) { return x; }
KT_DEVICE inline float Widen(bf16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
template <typename T>
KT_DEVICE T Narrow(float x);
template <>
KT_DEVICE inline float Narrow<float>(float x) {
  return x;
}
template <>
KT_DEVICE inline bf16 Narrow<bf16>(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  bf16 rounded;
  rounded.bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u
                                           ? bits >> 16 | 0x40u
                                           : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  return rounded;
}

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kWarpThreads = 32;

// The sum over the warp's lanes, the same bits in each.
KT_DEVICE inline float WarpSum(float x) {
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2)
    x += __shfl_xor_sync(kFullWarp, x, distance);
  return x;
}

// The sum over the block's threads, the same bits in each; `partial` is overwritten, whoever used
// it before is past a barrier.
template <int kThreads>
KT_DEVICE float BlockSum(float x, SharedArray<float, kThreads / kWarpThreads> partial) {
  x = WarpSum(x);
  if (threadIdx.x % kWarpThreads == 0) partial[threadIdx.x / kWarpThreads] = x;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kThreads / kWarpThreads; ++warp) sum += partial[warp];
  return sum;
}

}  // namespace kt::cuda

#endif  // KT_KERNELS_CUDA_LAUNCH_H_
