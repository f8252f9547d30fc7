// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/device_host.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "common/base/status.h"

namespace kt {
namespace {

constexpr size_t kBytes = 3 << 20;

struct DeviceHostTest : ::testing::Test {
  std::unique_ptr<Device> device = MakeHostDevice(64 << 20, 0);
  DeviceBuffer target = *device->Allocate(kBytes, "target");
  std::vector<uint8_t> source = std::vector<uint8_t>(kBytes, 7);
};

TEST_F(DeviceHostTest, AnEventOrdersACopyAndItsReader) {
  const StreamId copies = *device->CreateStream();
  const EventId copied = *device->CreateEvent();
  for (uint8_t value = 1; value < 50; ++value) {
    std::memset(source.data(), value, kBytes);
    ASSERT_TRUE(
        device->CopyAsync(target.data(), source.data(), kBytes, CopyKind::kHostToDevice, copies)
            .ok());
    ASSERT_TRUE(device->Record(copied, copies).ok());
    ASSERT_TRUE(device->Wait(StreamId{}, copied).ok());
    EXPECT_EQ(target.As<uint8_t>()[0], value);
    EXPECT_EQ(target.As<uint8_t>()[kBytes - 1], value);
  }
}

TEST_F(DeviceHostTest, AStreamWaitsForTheLastRecordBeforeItsWait) {
  const StreamId first = *device->CreateStream(), second = *device->CreateStream();
  const EventId ready = *device->CreateEvent();
  std::vector<uint8_t> middle(kBytes);
  for (uint8_t value = 1; value < 50; ++value) {
    std::memset(source.data(), value, kBytes);
    ASSERT_TRUE(
        device->CopyAsync(middle.data(), source.data(), kBytes, CopyKind::kDeviceToHost, first)
            .ok());
    ASSERT_TRUE(device->Record(ready, first).ok());
    ASSERT_TRUE(device->Wait(second, ready).ok());
    ASSERT_TRUE(
        device->CopyAsync(target.data(), middle.data(), kBytes, CopyKind::kHostToDevice, second)
            .ok());
    ASSERT_TRUE(device->Synchronize(second).ok());
    EXPECT_EQ(target.As<uint8_t>()[kBytes - 1], value);
  }
}

TEST_F(DeviceHostTest, AnEventThatWasNeverRecordedHoldsNobody) {
  const StreamId copies = *device->CreateStream();
  const EventId event = *device->CreateEvent();
  ASSERT_TRUE(device->Wait(copies, event).ok());
  ASSERT_TRUE(device->Wait(StreamId{}, event).ok());
  ASSERT_TRUE(device->Synchronize(copies).ok());
}

TEST_F(DeviceHostTest, CopiesRowsWithStrides) {
  std::iota(source.begin(), source.begin() + 256, 0);
  ASSERT_TRUE(device
                  ->CopyRowsAsync({.target = target.data(),
                                   .source = source.data() + 3,
                                   .bytes = 2,
                                   .rows = 3,
                                   .target_stride = 4,
                                   .source_stride = 10},
                                  CopyKind::kHostToDevice, StreamId{})
                  .ok());
  const std::vector<uint8_t> got(target.As<uint8_t>(), target.As<uint8_t>() + 12);
  EXPECT_EQ(got, (std::vector<uint8_t>{3, 4, 0, 0, 13, 14, 0, 0, 23, 24, 0, 0}));
}

TEST_F(DeviceHostTest, ASlowedCopyTakesItsTimeAndLeavesTheCallerFree) {
  std::unique_ptr<Device> slow = MakeHostDevice(0, 0.1);  // 3 MiB: 31 ms
  DeviceBuffer buffer = *slow->Allocate(kBytes, "buffer");
  const StreamId copies = *slow->CreateStream();
  const EventId begin = *slow->CreateEvent(), end = *slow->CreateEvent(),
                issued = *slow->CreateEvent();
  ASSERT_TRUE(slow->Record(begin, copies).ok());
  ASSERT_TRUE(
      slow->CopyAsync(buffer.data(), source.data(), kBytes, CopyKind::kHostToDevice, copies).ok());
  ASSERT_TRUE(slow->Record(end, copies).ok());
  ASSERT_TRUE(slow->Record(issued, StreamId{}).ok());
  ASSERT_TRUE(slow->Synchronize(copies).ok());
  EXPECT_GE(*slow->ElapsedMs(begin, end), 31);
  EXPECT_GT(*slow->ElapsedMs(issued, end), 0) << "the copy was over when it had been issued";
}

TEST_F(DeviceHostTest, CopiesWithinTheDeviceAreNotSlowed) {
  std::unique_ptr<Device> slow = MakeHostDevice(0, 1e-6);  // 3 MiB across the bus: 50 minutes
  DeviceBuffer a = *slow->Allocate(kBytes, "a"), b = *slow->Allocate(kBytes, "b");
  a.As<uint8_t>()[kBytes - 1] = 5;
  ASSERT_TRUE(slow->CopyAsync(b.data(), a.data(), kBytes, CopyKind::kDeviceToDevice, {}).ok());
  EXPECT_EQ(b.As<uint8_t>()[kBytes - 1], 5);
}

TEST_F(DeviceHostTest, MemoryIsCapped) {
  const auto more = device->Allocate(64 << 20, "a buffer");
  EXPECT_NE(Message(more.status()).find("--device-memory-bytes"), std::string::npos);
}

}  // namespace
}  // namespace kt
