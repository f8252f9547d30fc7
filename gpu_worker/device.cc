// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/device.h"

#include "common/base/status.h"

namespace kt {

absl::StatusOr<DeviceBuffer> Device::Allocate(size_t bytes, const std::string& what) {
  if (bytes == 0) return InvalidArgument("device {}: {} has no bytes", name(), what);
  bytes = (bytes + 255) / 256 * 256;
  if (bytes > capacity_ - used_) {
    return ResourceExhausted(
        "device {}: {} needs {} bytes, {} of {} are left; raise --device-memory-bytes or give the "
        "device less to hold (kt plan says what would fit)",
        name(), what, bytes, capacity_ - used_, capacity_);
  }
  KT_ASSIGN_OR_RETURN(void* data, Map(bytes, what));
  used_ += bytes;
  allocations_.push_back({data, {what, bytes}});
  return DeviceBuffer(this, data, bytes);
}

std::vector<DeviceAllocation> Device::allocations() const {
  std::vector<DeviceAllocation> all;
  for (const auto& [data, allocation] : allocations_) all.push_back(allocation);
  return all;
}

void Device::Free(void* data, size_t bytes) {
  if (std::erase_if(allocations_, [data](const auto& a) { return a.first == data; }) == 0)
    return UnmapHost(data, bytes);
  used_ -= bytes;
  Unmap(data, bytes);
}

}  // namespace kt
