// SPDX-License-Identifier: Apache-2.0
// Compiled against the CUDA runtime, and against kernels/cuda/shim for its test.
#include "gpu_worker/device_cuda.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "common/base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace kt {
namespace {

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
  CudaDevice(std::string name, size_t capacity_bytes)
      : Device(capacity_bytes), name_(std::move(name)) {}
  ~CudaDevice() override {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  std::string name() const override { return name_; }

  absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes, const std::string& what) override {
    if (bytes == 0) return InvalidArgument("{}: {} has no bytes", name_, what);
    void* data = nullptr;
    KT_RETURN_IF_ERROR(
        CudaStatus(cudaHostAlloc(&data, bytes, cudaHostAllocDefault),
                   fmt::format("{}: page-locked {} ({} bytes)", name_, what, bytes)));
    std::memset(data, 0, bytes);
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
  absl::StatusOr<void*> Map(size_t bytes, const std::string& what) override {
    void* data = nullptr;
    KT_RETURN_IF_ERROR(
        CudaStatus(cudaMalloc(&data, bytes), fmt::format("{}: {} ({} bytes)", name_, what, bytes)));
    // Streams do not wait for the default one, on which this runs.
    absl::Status zeroed = CudaStatus(cudaMemset(data, 0, bytes), what);
    if (zeroed.ok()) zeroed = CudaStatus(cudaDeviceSynchronize(), what);
    if (!zeroed.ok()) {
      cudaFree(data);
      return zeroed;
    }
    return data;
  }
  void Unmap(void* data, size_t) override { cudaFree(data); }
  void UnmapHost(void* data, size_t) override { cudaFreeHost(data); }

 private:
  const std::string name_;
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index, size_t memory_bytes_max) {
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
  auto device = std::make_unique<CudaDevice>(fmt::format("cuda:{} {}", index, properties.name),
                                             memory_bytes_max == 0 ? free_bytes : memory_bytes_max);
  KT_RETURN_IF_ERROR(device->CreateStream().status());  // StreamId 0
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace kt
