// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/device_host.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "common/base/status.h"
#include "common/ipc/pages.h"

namespace kt {
namespace {

size_t PhysicalBytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
}

class HostDevice final : public Device {
 public:
  HostDevice(size_t memory_bytes_max, double copy_gbps)
      : Device(memory_bytes_max != 0 ? memory_bytes_max : PhysicalBytes()), copy_gbps_(copy_gbps) {}

  std::string name() const override { return "host"; }

  // On this device host memory is device memory; it counts as used all the same.
  absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes, const std::string& what) override {
    return Allocate(bytes, what);
  }

  absl::StatusOr<StreamId> CreateStream() override { return StreamId{++streams_}; }
  absl::StatusOr<EventId> CreateEvent() override { return EventId{++events_}; }
  absl::Status Record(EventId, StreamId) override { return absl::OkStatus(); }
  absl::Status Wait(StreamId, EventId) override { return absl::OkStatus(); }
  absl::Status Synchronize(StreamId) override { return absl::OkStatus(); }

  absl::Status CopyAsync(void* target, const void* source, size_t bytes, CopyKind kind,
                         StreamId) override {
    auto start = std::chrono::steady_clock::now();
    std::memcpy(target, source, bytes);
    if (copy_gbps_ > 0 && kind != CopyKind::kDeviceToDevice) {
      std::this_thread::sleep_until(start + std::chrono::nanoseconds(static_cast<int64_t>(
                                                static_cast<double>(bytes) / copy_gbps_)));
    }
    return absl::OkStatus();
  }

 protected:
  absl::StatusOr<void*> Map(size_t bytes, const std::string& what) override {
    void* p = MapMemory(-1, bytes);
    if (p == nullptr)
      return ResourceExhausted("device host: no memory for {} ({} bytes): {}", what, bytes,
                               strerror(errno));
    if (bytes >= kHugePage) madvise(p, bytes, MADV_HUGEPAGE);
    return p;
  }
  void Unmap(void* data, size_t bytes) override { munmap(data, bytes); }
  void UnmapHost(void* data, size_t bytes) override { munmap(data, bytes); }

 private:
  const double copy_gbps_;
  int streams_ = 0;
  int events_ = 0;
};

}  // namespace

std::unique_ptr<Device> MakeHostDevice(size_t memory_bytes_max, double copy_gbps) {
  return std::make_unique<HostDevice>(memory_bytes_max, copy_gbps);
}

}  // namespace kt
