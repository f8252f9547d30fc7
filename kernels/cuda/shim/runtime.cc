// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/shim/cuda_runtime.h"

namespace kt::shim {
// Issued work waits here; `ran` counts what has run, so that an event is a queue and a count.
struct Queue {
  std::deque<std::function<void()>> work;
  uint64_t issued = 0;
  uint64_t ran = 0;
};
}  // namespace kt::shim

struct CUstream_st {
  std::shared_ptr<kt::shim::Queue> queue = std::make_shared<kt::shim::Queue>();
};
struct CUevent_st {
  std::shared_ptr<kt::shim::Queue> queue;  // null: never recorded
  uint64_t count = 0;
  std::shared_ptr<std::chrono::steady_clock::time_point> when;  // it happened
};

namespace kt::shim {
namespace {

constexpr int kFreshByte = 0xA5;
constexpr int kBlockThreadsMax = 1024;

class Runtime {
 public:
  static Runtime& Get() {
    static Runtime runtime;
    return runtime;
  }

  cudaError_t Allocate(void** data, size_t bytes, bool device) {
    if (!fault_.empty()) return cudaErrorLaunchFailure;
    if (device && bytes > device_bytes_ - used_) return Fail(cudaErrorMemoryAllocation);
    *data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*data == nullptr) return Fail(cudaErrorMemoryAllocation);
    std::memset(*data, kFreshByte, bytes);
    if (device) used_ += bytes;
    allocations_[static_cast<const char*>(*data)] = {bytes, device};
    return cudaSuccess;
  }
  cudaError_t Free(void* data, bool device) {
    if (data == nullptr) return cudaSuccess;
    auto it = allocations_.find(static_cast<const char*>(data));
    if (it == allocations_.end() || it->second.device != device) return Fail(cudaErrorInvalidValue);
    Synchronize();
    if (device) used_ -= it->second.bytes;
    allocations_.erase(it);
    std::free(data);
    return State();
  }
  Extent Find(const void* address, bool device) const {
    const char* at = static_cast<const char*>(address);
    auto it = allocations_.upper_bound(at);
    if (it == allocations_.begin()) return {at, at};
    --it;
    const char* end = it->first + it->second.bytes;
    return it->second.device == device && at < end ? Extent{it->first, end} : Extent{at, at};
  }
  bool OnDevice(const void* data, size_t bytes) const {
    const Extent extent = Find(data, true);
    return bytes == 0 || static_cast<size_t>(extent.end - static_cast<const char*>(data)) >= bytes;
  }

  void NewStream(CUstream_st* stream) { streams_.push_back(stream); }
  void DropStream(CUstream_st* stream) {
    RunUntil(*stream->queue, stream->queue->issued);
    std::erase(streams_, stream);
  }
  void Issue(CUstream_st* stream, std::function<void()> work) {
    if (!fault_.empty()) return;
    stream->queue->work.push_back(std::move(work));
    ++stream->queue->issued;
  }
  // Runs the queue's work up to `count`; after a fault work is dropped.
  void RunUntil(Queue& queue, uint64_t count) {
    while (queue.ran < count) {
      std::function<void()> work = std::move(queue.work.front());
      queue.work.pop_front();
      ++queue.ran;
      if (fault_.empty()) work();
    }
  }
  void Synchronize() {
    for (CUstream_st* stream : streams_) RunUntil(*stream->queue, stream->queue->issued);
  }

  void Faulted(std::string what) {
    if (fault_.empty()) fault_ = std::move(what);
  }
  std::string TakeFault() { return std::exchange(fault_, ""); }
  cudaError_t Fail(cudaError_t error) { return last_error_ = error; }
  cudaError_t State() const { return fault_.empty() ? cudaSuccess : cudaErrorLaunchFailure; }
  cudaError_t TakeLastError() {
    const cudaError_t error = std::exchange(last_error_, cudaSuccess);
    return fault_.empty() ? error : cudaErrorLaunchFailure;
  }
  void set_device_bytes(size_t bytes) { device_bytes_ = bytes; }
  size_t device_bytes() const { return device_bytes_; }
  size_t used() const { return used_; }

 private:
  struct Allocation {
    size_t bytes;
    bool device;
  };
  std::map<const char*, Allocation> allocations_;
  std::vector<CUstream_st*> streams_;
  std::string fault_;
  cudaError_t last_error_ = cudaSuccess;
  size_t device_bytes_ = size_t{1} << 30;
  size_t used_ = 0;
};

}  // namespace

Extent FindAllocation(const void* address) { return Runtime::Get().Find(address, true); }
void SetDeviceBytes(size_t bytes) { Runtime::Get().set_device_bytes(bytes); }
std::string TakeFault() { return Runtime::Get().TakeFault(); }

cudaError_t EnqueueKernel(const KernelShape& shape, cudaStream_t stream,
                          std::function<void()> thread) {
  Runtime& runtime = Runtime::Get();
  const bool one_dimension = shape.grid.y == 1 && shape.grid.z == 1;
  if (shape.threads < 1 || shape.threads > kBlockThreadsMax || shape.grid.x < 1 ||
      shape.grid.x > 0x7fffffffu || !one_dimension) {
    return runtime.Fail(cudaErrorInvalidConfiguration);
  }
  runtime.Issue(stream, [shape, thread = std::move(thread)] {
    if (std::string fault = RunKernel(shape, thread); !fault.empty())
      Runtime::Get().Faulted(std::move(fault));
  });
  return runtime.State();
}

}  // namespace kt::shim

using kt::shim::Runtime;

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
  }
  return "unknown error";
}
cudaError_t cudaGetLastError() { return Runtime::Get().TakeLastError(); }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorNoDevice; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return cudaErrorNoDevice;
  *properties = {"CPU shim", Runtime::Get().device_bytes()};
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *total_bytes = Runtime::Get().device_bytes();
  *free_bytes = *total_bytes - Runtime::Get().used();
  return Runtime::Get().State();
}
cudaError_t cudaMalloc(void** data, size_t bytes) {
  return Runtime::Get().Allocate(data, bytes, true);
}
cudaError_t cudaFree(void* data) { return Runtime::Get().Free(data, true); }
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  return Runtime::Get().Allocate(data, bytes, false);
}
cudaError_t cudaFreeHost(void* data) { return Runtime::Get().Free(data, false); }
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  if (!Runtime::Get().OnDevice(data, bytes)) return cudaErrorInvalidValue;
  Runtime::Get().Synchronize();
  std::memset(data, value, bytes);
  return Runtime::Get().State();
}
cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  Runtime& runtime = Runtime::Get();
  const bool to_device = kind != cudaMemcpyDeviceToHost,
             from_device = kind != cudaMemcpyHostToDevice;
  if ((to_device && !runtime.OnDevice(target, bytes)) ||
      (from_device && !runtime.OnDevice(source, bytes)))
    return cudaErrorInvalidValue;
  runtime.Issue(stream, [=] { std::memmove(target, source, bytes); });
  return runtime.State();
}
cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source,
                              size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  if (width > target_pitch || width > source_pitch) return cudaErrorInvalidValue;
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error =
        cudaMemcpyAsync(static_cast<char*>(target) + row * target_pitch,
                        static_cast<const char*>(source) + row * source_pitch, width, kind, stream);
    if (error != cudaSuccess) return error;
  }
  return Runtime::Get().State();
}
cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  return data != nullptr && bytes > 0 ? Runtime::Get().State() : cudaErrorInvalidValue;
}
cudaError_t cudaHostUnregister(void*) { return Runtime::Get().State(); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  Runtime::Get().NewStream(*stream);
  return Runtime::Get().State();
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Runtime::Get().DropStream(stream);
  delete stream;
  return Runtime::Get().State();
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Runtime::Get().RunUntil(*stream->queue, stream->queue->issued);
  return Runtime::Get().State();
}
cudaError_t cudaDeviceSynchronize() {
  Runtime::Get().Synchronize();
  return Runtime::Get().State();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return Runtime::Get().State();
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return Runtime::Get().State();
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  auto when = std::make_shared<std::chrono::steady_clock::time_point>();
  Runtime::Get().Issue(stream, [when] { *when = std::chrono::steady_clock::now(); });
  *event = {stream->queue, stream->queue->issued, when};
  return Runtime::Get().State();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  for (const CUevent_st* event : {from, to}) {
    if (event->queue == nullptr || event->queue->ran < event->count)
      return cudaErrorInvalidResourceHandle;
  }
  *ms = std::chrono::duration<float, std::milli>(*to->when - *from->when).count();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Runtime& runtime = Runtime::Get();
  if (event->queue == nullptr) return runtime.State();
  runtime.Issue(stream,
                [recorded = *event] { Runtime::Get().RunUntil(*recorded.queue, recorded.count); });
  return runtime.State();
}
