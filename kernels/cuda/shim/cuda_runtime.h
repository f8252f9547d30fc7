// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA runtime API that this project uses, on the CPU: the same kernels and the
// same device code run in tests on any machine. Found as <cuda_runtime.h> by targets that link
// kt::cuda_shim. What a GPU would only do sometimes, this does always:
//
// Streams  nothing runs when it is issued. Work runs when a stream or the device is synchronised,
// and then only what the stream's order
//          and its event waits require: a missing wait shows as stale data.
// Memory   allocations are registered with their exact size; a kernel that leaves them faults,
// copies that do are refused. Fresh memory holds 0xA5. Faults   stick, as on a GPU: every later
// call returns cudaErrorLaunchFailure. kt::shim::TakeFault() tells what happened and clears it.
// Threads  one thread at a time.
#ifndef KT_KERNELS_CUDA_SHIM_CUDA_RUNTIME_H_
#define KT_KERNELS_CUDA_SHIM_CUDA_RUNTIME_H_

#include <cstddef>

#include "kernels/cuda/shim/simt.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorLaunchFailure = 719,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3
};
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaHostAllocDefault = 0,
                   cudaHostRegisterReadOnly = 8;

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
};

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();  // of a launch; does not clear a fault
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaMalloc(void** data, size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemset(void* data, int value, size_t bytes);  // waits for the device first
cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source,
                              size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream);
cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* data);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);

namespace kt::shim {

// Bytes that cudaMalloc hands out in all; for tests of exhaustion.
void SetDeviceBytes(size_t bytes);
// What the first fault was ("rms_norm: block 3, thread 17: ..."), empty if none; the device is
// usable again afterwards.
std::string TakeFault();
// Queues a kernel; used by Launch().
cudaError_t EnqueueKernel(const KernelShape& shape, cudaStream_t stream,
                          std::function<void()> thread);

}  // namespace kt::shim

#endif  // KT_KERNELS_CUDA_SHIM_CUDA_RUNTIME_H_
