// SPDX-License-Identifier: Apache-2.0
#include "planner/measuring_device.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "common/base/status.h"

namespace kt {
namespace {
constexpr size_t kCapacity = size_t{1} << 46;  // half of what a process can address
}

MeasuringDevice::MeasuringDevice() : Device(kCapacity) {}

absl::Status MeasuringDevice::CopyAsync(void*, const void*, size_t, CopyKind, StreamId) {
  return Unimplemented("device {}: it has no memory to copy", name());
}

absl::Status MeasuringDevice::CopyRowsAsync(const CopyRows&, CopyKind kind, StreamId stream) {
  return CopyAsync(nullptr, nullptr, 0, kind, stream);
}

absl::StatusOr<void*> MeasuringDevice::Map(size_t bytes, const std::string& what) {
  void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    return ResourceExhausted("memory plan: no address space for {} ({} bytes): {}", what, bytes,
                             strerror(errno));
  }
  return p;
}

void MeasuringDevice::Unmap(void* data, size_t bytes) { munmap(data, bytes); }

}  // namespace kt
