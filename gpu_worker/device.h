// SPDX-License-Identifier: Apache-2.0
// The device under the forward pass: memory, streams, events, copies. `host` is the CPU as a device
// (capped memory, optionally slow copies), `cuda` a GPU. Operations on tensors are in ops.h.
//
// Streams  work of one stream runs in order of issue, streams run beside each other; an event
// orders them. A device may run work at
//          once (host), so the caller may rely on order only, never on asynchrony.
// Threads  one thread (the engine loop) calls everything; a device starts threads of its own as it
// needs. Errors   Status of the issue; a fault of the work itself surfaces in Synchronize and is
// sticky: the worker ends and is restarted.
#ifndef KT_GPU_WORKER_DEVICE_H_
#define KT_GPU_WORKER_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kt {

enum class CopyKind { kHostToDevice, kDeviceToHost, kDeviceToDevice };

// Names a stream or event of the device that made it.
struct StreamId {
  int value = 0;  // 0: the default stream, always there
};
struct EventId {
  int value = 0;
};

// `rows` pieces of `bytes` each, adjacent or not; strides in bytes from one piece to the next.
struct CopyRows {
  void* target = nullptr;
  const void* source = nullptr;
  size_t bytes = 0;
  size_t rows = 1;
  size_t target_stride = 0, source_stride = 0;  // >= bytes, where there are several rows
};

class Device;

// Owns device memory; empty when default made. Freed with its device's Free, so it may not outlive
// the device.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device* device, void* data, size_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& o) noexcept
      : device_(std::exchange(o.device_, nullptr)),
        data_(std::exchange(o.data_, nullptr)),
        bytes_(std::exchange(o.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& o) noexcept {
    std::swap(device_, o.device_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* As() const {
    return static_cast<T*>(data_);
  }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// What a piece of device memory is for; names are those of the memory plan.
struct DeviceAllocation {
  std::string what;
  size_t bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "host", "cuda:0 NVIDIA H200"
  // Bytes that may be allocated in all and are allocated now.
  size_t capacity_bytes() const { return capacity_; }
  size_t used_bytes() const { return used_; }
  // Everything that is allocated now, in order of the calls; page-locked host memory apart.
  std::vector<DeviceAllocation> allocations() const;

  // Zeroed, aligned to 256 bytes. ResourceExhausted names `what`, the bytes asked for and those
  // left. Only at start: nothing allocates in a step.
  absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, const std::string& what);
  // Host memory that copies can use directly (page-locked where the device knows that).
  virtual absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes, const std::string& what) = 0;

  virtual absl::StatusOr<StreamId> CreateStream() = 0;
  virtual absl::StatusOr<EventId> CreateEvent() = 0;
  virtual absl::Status Record(
      EventId event,
      StreamId stream) = 0;  // the event stands for all work issued to the stream so far
  virtual absl::Status Wait(StreamId stream,
                            EventId event) = 0;  // later work of the stream waits for the event
  virtual absl::Status Synchronize(StreamId stream) = 0;  // blocks the caller
  virtual absl::Status CopyAsync(void* target, const void* source, size_t bytes, CopyKind kind,
                                 StreamId stream) = 0;
  virtual absl::Status CopyRowsAsync(const CopyRows& copy, CopyKind kind, StreamId stream) = 0;
  // From one event's last record to another's, both of which have happened; negative if `to` came
  // first.
  virtual absl::StatusOr<double> ElapsedMs(EventId from, EventId to) = 0;

  // Lets copies read host memory of others without staging (page-locks it where the device knows
  // that) until it is unregistered. An error costs speed only: copies are staged by the driver.
  virtual absl::Status RegisterHost(const void* data, size_t bytes) = 0;
  virtual void UnregisterHost(const void* data) = 0;

 protected:
  explicit Device(size_t capacity_bytes) : capacity_(capacity_bytes) {}
  // Zeroed memory; bytes is a multiple of 256 and above 0.
  virtual absl::StatusOr<void*> Map(size_t bytes, const std::string& what) = 0;
  virtual void Unmap(void* data, size_t bytes) = 0;
  virtual void UnmapHost(void* data, size_t bytes) = 0;  // of AllocateHost

 private:
  friend class DeviceBuffer;
  void Free(void* data, size_t bytes);

  const size_t capacity_;
  size_t used_ = 0;
  std::vector<std::pair<const void*, DeviceAllocation>> allocations_;  // in order of the calls
};

inline DeviceBuffer::~DeviceBuffer() {
  if (device_ != nullptr) device_->Free(data_, bytes_);
}

}  // namespace kt

#endif  // KT_GPU_WORKER_DEVICE_H_
