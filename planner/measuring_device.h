// SPDX-License-Identifier: Apache-2.0
// A device without memory: allocations get address space that must not be touched, and are counted.
#ifndef KT_PLANNER_MEASURING_DEVICE_H_
#define KT_PLANNER_MEASURING_DEVICE_H_

#include "gpu_worker/device.h"

namespace kt {

class MeasuringDevice final : public Device {
 public:
  MeasuringDevice();

  std::string name() const override { return "of the plan"; }
  absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes, const std::string& what) override {
    return Allocate(bytes, what);
  }
  absl::StatusOr<StreamId> CreateStream() override { return StreamId{}; }
  absl::StatusOr<EventId> CreateEvent() override { return EventId{}; }
  absl::Status Record(EventId, StreamId) override { return absl::OkStatus(); }
  absl::Status Wait(StreamId, EventId) override { return absl::OkStatus(); }
  absl::Status Synchronize(StreamId) override { return absl::OkStatus(); }
  // Unimplemented: nothing can be copied here.
  absl::Status CopyAsync(void*, const void*, size_t, CopyKind, StreamId) override;
  absl::Status CopyRowsAsync(const CopyRows&, CopyKind, StreamId) override;
  absl::StatusOr<double> ElapsedMs(EventId, EventId) override { return 0.0; }
  absl::Status RegisterHost(const void*, size_t) override { return absl::OkStatus(); }
  void UnregisterHost(const void*) override {}

 protected:
  absl::StatusOr<void*> Map(size_t bytes, const std::string& what) override;
  void Unmap(void* data, size_t bytes) override;
  void UnmapHost(void* data, size_t bytes) override { Unmap(data, bytes); }
};

}  // namespace kt

#endif  // KT_PLANNER_MEASURING_DEVICE_H_
