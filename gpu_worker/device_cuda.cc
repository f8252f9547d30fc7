// SPDX-License-Identifier: Apache-2.0
// Compiled against the CUDA runtime, and against kernels/cuda/shim for its test.
#include "gpu_worker/device_cuda.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <cstring>
#include <unordered_set>
#include <vector>

#include "common/base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace kt {
namespace {

constexpr size_t kAlignment = 256;

cudaMemcpyKind KindOf(CopyKind kind) {
  switch (kind) {
    case CopyKind::kHostToDevice:
      return cudaMemcpyHostToDevice;
    case CopyKind::kDeviceToHost:
      return cudaMemcpyDeviceToHost;
    case CopyKind::kDeviceToDevice:
      break;
  }
  return cudaMemcpyDeviceToDevice;
}

class CudaDevice final : public Device {
 public:
  ~CudaDevice() override {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  absl::Status Init(int index, size_t memory_bytes_max) {
    const std::string where = fmt::format("device cuda:{}", index);
    int count = 0;
    KT_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), where));
    if (index < 0 || index >= count)
      return Unavailable("{}: this process sees {} GPUs; choose one of them or use the host device",
                         where, count);
    cudaDeviceProp properties;
    size_t free_bytes = 0, total_bytes = 0;
    KT_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(index), where));
    KT_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, index), where));
    KT_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), where));
    name_ = fmt::format("cuda:{} {}", index, properties.name);
    capacity_ = memory_bytes_max == 0 ? free_bytes : memory_bytes_max;
    return CreateStream().status();  // StreamId 0
  }

  std::string name() const override { return name_; }
  size_t capacity_bytes() const override { return capacity_; }
  size_t used_bytes() const override { return used_; }

  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, const std::string& what) override {
    if (bytes == 0) return InvalidArgument("{}: {} has no bytes", name_, what);
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (bytes > capacity_ - used_) {
      return ResourceExhausted(
          "{}: {} needs {} bytes, {} of {} are left; raise --device-memory-bytes or give the "
          "device less to hold",
          name_, what, bytes, capacity_ - used_, capacity_);
    }
    void* data = nullptr;
    KT_RETURN_IF_ERROR(
        CudaStatus(cudaMalloc(&data, bytes), fmt::format("{}: {} ({} bytes)", name_, what, bytes)));
    used_ += bytes;
    DeviceBuffer buffer(this, data, bytes);
    // Streams do not wait for the default one, on which this runs.
    KT_RETURN_IF_ERROR(CudaStatus(cudaMemset(data, 0, bytes), what));
    KT_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), what));
    return buffer;
  }

  absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes, const std::string& what) override {
    if (bytes == 0) return InvalidArgument("{}: {} has no bytes", name_, what);
    void* data = nullptr;
    KT_RETURN_IF_ERROR(
        CudaStatus(cudaHostAlloc(&data, bytes, cudaHostAllocDefault),
                   fmt::format("{}: page-locked {} ({} bytes)", name_, what, bytes)));
    std::memset(data, 0, bytes);
    host_.insert(data);
    return DeviceBuffer(this, data, bytes);
  }

  absl::StatusOr<StreamId> CreateStream() override {
    cudaStream_t stream = nullptr;
    KT_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                  name_ + ": create stream"));
    streams_.push_back(stream);
    return StreamId{static_cast<int>(streams_.size()) - 1};
  }
  absl::StatusOr<EventId> CreateEvent() override {
    cudaEvent_t event = nullptr;
    KT_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDefault), name_ + ": create event"));
    events_.push_back(event);
    return EventId{static_cast<int>(events_.size()) - 1};
  }
  absl::Status Record(EventId event, StreamId stream) override {
    return CudaStatus(cudaEventRecord(events_[static_cast<size_t>(event.value)],
                                      streams_[static_cast<size_t>(stream.value)]),
                      name_ + ": record event");
  }
  absl::Status Wait(StreamId stream, EventId event) override {
    return CudaStatus(cudaStreamWaitEvent(streams_[static_cast<size_t>(stream.value)],
                                          events_[static_cast<size_t>(event.value)], 0),
                      name_ + ": wait for event");
  }
  absl::Status Synchronize(StreamId stream) override {
    return CudaStatus(cudaStreamSynchronize(streams_[static_cast<size_t>(stream.value)]),
                      name_ + ": synchronise");
  }
  absl::Status CopyAsync(void* target, const void* source, size_t bytes, CopyKind kind,
                         StreamId stream) override {
    return CudaStatus(cudaMemcpyAsync(target, source, bytes, KindOf(kind),
                                      streams_[static_cast<size_t>(stream.value)]),
                      name_ + ": copy");
  }
  absl::Status CopyRowsAsync(const CopyRows& c, CopyKind kind, StreamId stream) override {
    if (c.rows == 1) return CopyAsync(c.target, c.source, c.bytes, kind, stream);
    return CudaStatus(
        cudaMemcpy2DAsync(c.target, c.target_stride, c.source, c.source_stride, c.bytes, c.rows,
                          KindOf(kind), streams_[static_cast<size_t>(stream.value)]),
        name_ + ": copy of rows");
  }
  absl::StatusOr<double> ElapsedMs(EventId from, EventId to) override {
    float ms = 0;
    KT_RETURN_IF_ERROR(
        CudaStatus(cudaEventElapsedTime(&ms, events_[static_cast<size_t>(from.value)],
                                        events_[static_cast<size_t>(to.value)]),
                   name_ + ": elapsed time"));
    return ms;
  }

  absl::Status RegisterHost(const void* data, size_t bytes) override {
    const absl::Status status =
        CudaStatus(cudaHostRegister(const_cast<void*>(data), bytes, cudaHostRegisterReadOnly),
                   fmt::format("{}: page-locking {} bytes of host memory", name_, bytes));
    cudaGetLastError();  // a refusal is no fault of the device
    return status;
  }
  void UnregisterHost(const void* data) override {
    cudaHostUnregister(const_cast<void*>(data));
    cudaGetLastError();
  }

 protected:
  void Free(void* data, size_t bytes) override {
    if (host_.erase(data) != 0) {
      cudaFreeHost(data);
      return;
    }
    cudaFree(data);
    used_ -= bytes;
  }

 private:
  std::string name_;
  size_t capacity_ = 0;
  size_t used_ = 0;
  std::unordered_set<void*> host_;  // page-locked buffers that are alive
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index, size_t memory_bytes_max) {
  auto device = std::make_unique<CudaDevice>();
  KT_RETURN_IF_ERROR(device->Init(index, memory_bytes_max));
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace kt
