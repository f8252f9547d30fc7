// SPDX-License-Identifier: Apache-2.0
// device_cuda.cc on the shim, whose streams run nothing before it is waited for.
#include "gpu_worker/device_cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/shim/cuda_runtime.h"

namespace kt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DeviceCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    shim::SetDeviceBytes(1 << 20);
    device_ = MakeCudaDevice(0, 64 << 10).value();
  }
  std::unique_ptr<Device> device_;
};

TEST_F(DeviceCudaTest, MemoryIsZeroedCountedAndCapped) {
  EXPECT_EQ(device_->name(), "cuda:0 CPU shim");
  EXPECT_EQ(device_->capacity_bytes(), size_t{64} << 10);
  {
    DeviceBuffer buffer = device_->Allocate(1000, "weights").value();
    EXPECT_EQ(buffer.bytes(), 1024u);
    EXPECT_EQ(device_->used_bytes(), 1024u);
    EXPECT_TRUE(
        std::all_of(buffer.As<char>(), buffer.As<char>() + 1000, [](char c) { return c == 0; }));
    absl::Status full = device_->Allocate(64 << 10, "cache").status();
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(Message(full),
                AllOf(HasSubstr("cache"), HasSubstr("65536"), HasSubstr("64512 of 65536"),
                      HasSubstr("--device-memory-bytes")));
    DeviceBuffer host = device_->AllocateHost(1 << 20, "staging").value();
    EXPECT_EQ(device_->used_bytes(), 1024u) << "page-locked memory is not device memory";
    EXPECT_EQ(host.As<char>()[(1 << 20) - 1], 0);
  }
  EXPECT_EQ(device_->used_bytes(), 0u);
  EXPECT_EQ(device_->Allocate(0, "nothing").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DeviceCudaTest, WithoutACapTheFreeMemoryIsTheCapacityAndItsEndIsAStatus) {
  std::unique_ptr<Device> device = MakeCudaDevice(0, 0).value();
  EXPECT_EQ(device->capacity_bytes(), size_t{1} << 20);
  DeviceBuffer taken = device_->Allocate(32 << 10, "by another").value();
  absl::Status full = device->Allocate(1 << 20, "cache").status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(full), HasSubstr("out of memory"));
}

TEST_F(DeviceCudaTest, EventsOrderCopiesOfTwoStreams) {
  DeviceBuffer device_data = device_->Allocate(256, "data").value();
  DeviceBuffer source = device_->AllocateHost(256, "source").value(),
               target = device_->AllocateHost(256, "target").value();
  StreamId copies = device_->CreateStream().value();
  EventId written = device_->CreateEvent().value();
  source.As<int>()[0] = 7;
  ASSERT_TRUE(
      device_
          ->CopyAsync(device_data.data(), source.data(), 256, CopyKind::kHostToDevice, StreamId{})
          .ok());
  ASSERT_TRUE(device_->Record(written, StreamId{}).ok());
  ASSERT_TRUE(device_->Wait(copies, written).ok());
  ASSERT_TRUE(
      device_->CopyAsync(target.data(), device_data.data(), 256, CopyKind::kDeviceToHost, copies)
          .ok());
  EXPECT_EQ(target.As<int>()[0], 0) << "issued only";
  ASSERT_TRUE(device_->Synchronize(copies).ok());
  EXPECT_EQ(target.As<int>()[0], 7);
}

TEST_F(DeviceCudaTest, CopiesRowsOfHostMemoryAndTellsHowLongThatTook) {
  DeviceBuffer data = device_->Allocate(256, "data").value();
  const std::vector<char> source = {'a', 'b', '.', 'c', 'd', '.'};
  ASSERT_EQ(Message(device_->RegisterHost(source.data(), source.size())), "");
  const EventId begin = device_->CreateEvent().value(), end = device_->CreateEvent().value();
  ASSERT_TRUE(device_->Record(begin, StreamId{}).ok());
  ASSERT_EQ(Message(device_->CopyRowsAsync({.target = data.data(),
                                            .source = source.data(),
                                            .bytes = 2,
                                            .rows = 2,
                                            .target_stride = 4,
                                            .source_stride = 3},
                                           CopyKind::kHostToDevice, StreamId{})),
            "");
  ASSERT_TRUE(device_->Record(end, StreamId{}).ok());
  EXPECT_FALSE(device_->ElapsedMs(begin, end).ok()) << "it has not happened yet";
  ASSERT_TRUE(device_->Synchronize(StreamId{}).ok());
  EXPECT_GE(device_->ElapsedMs(begin, end).value(), 0);
  EXPECT_EQ(std::string(data.As<char>(), 2), "ab");
  EXPECT_EQ(std::string(data.As<char>() + 4, 2), "cd");
  device_->UnregisterHost(source.data());
}

TEST_F(DeviceCudaTest, ACopyOutsideABufferIsRefused) {
  DeviceBuffer data = device_->Allocate(256, "data").value();
  char host[512] = {};
  absl::Status status =
      device_->CopyAsync(data.data(), host, 257, CopyKind::kHostToDevice, StreamId{});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("cuda:0 CPU shim: copy"));
}

TEST_F(DeviceCudaTest, AnUnknownGpuIsRefused) {
  EXPECT_EQ(MakeCudaDevice(1, 0).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(MakeCudaDevice(-1, 0).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kt
