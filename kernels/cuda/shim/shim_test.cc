// SPDX-License-Identifier: Apache-2.0
// A correct kernel passes, and each mutant of it that a GPU might let pass is caught.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/testing.h"

namespace kt::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

enum class Mutant {
  kNone,
  kDivergentBarrier,
  kEarlyReturn,
  kTwoBarriers,
  kOutOfBounds,
  kSharedOutOfBounds,
  kMissingSync,
  kMissingSyncBeforeReuse,
  kUninitialised,
  kDivergentShuffle,
  kShuffleOutsideMask
};

constexpr int kThreads = 64;

// Reverses each run of 64 numbers through shared memory, then adds the neighbour lane's value.
KT_KERNEL void ReverseKernel(GlobalPointer<const int> in, GlobalPointer<int> out, Mutant mutant) {
  KT_SHARED(int, tile, kThreads);
  const int t = threadIdx.x;
  const int64_t at = int64_t{blockIdx.x} * kThreads + t;
  if (mutant == Mutant::kEarlyReturn && t == 5) return;
  if (mutant != Mutant::kUninitialised || t != 9) tile[t] = in[at];
  if (mutant == Mutant::kTwoBarriers && t < 32) {
    __syncthreads();
  } else if (mutant != Mutant::kMissingSync) {
    __syncthreads();
  }
  int value = tile[kThreads - 1 - t];
  if (mutant == Mutant::kDivergentBarrier && t < 32) __syncthreads();
  if (mutant == Mutant::kMissingSyncBeforeReuse) tile[t] = value;
  if (mutant == Mutant::kSharedOutOfBounds) value = tile[t + 1];
  if (mutant != Mutant::kDivergentShuffle || t != 40) {
    const unsigned mask = mutant == Mutant::kShuffleOutsideMask ? 0x7fffffffu : kFullWarp;
    value += __shfl_xor_sync(mask, value, 1);
  }
  out[mutant == Mutant::kOutOfBounds ? at + 1 : at] = value;
}

class CudaShimTest : public ::testing::Test {
 protected:
  // Runs the kernel on two blocks; returns the fault.
  std::string Run(Mutant mutant) {
    std::vector<int> in(2 * kThreads);
    std::iota(in.begin(), in.end(), 100);
    {
      DeviceBytes in_device(stream_, in), out_device(stream_, in);
      EXPECT_TRUE(Launch("reverse", 2, kThreads, stream_, ReverseKernel, in_device.As<int>(),
                         out_device.As<int>(), mutant)
                      .ok());
      const cudaError_t error = stream_.Wait();
      EXPECT_EQ(error, mutant == Mutant::kNone ? cudaSuccess : cudaErrorLaunchFailure);
      if (mutant == Mutant::kNone) {
        out_.resize(in.size());
        out_device.Read(out_.data());
      }
    }
    return shim::TakeFault();
  }

  TestStream stream_;
  std::vector<int> out_;
};

TEST_F(CudaShimTest, ACorrectKernelComputes) {
  EXPECT_EQ(Run(Mutant::kNone), "");
  for (int i = 0; i < 2 * kThreads; ++i) {
    const int block = i / kThreads * kThreads, t = i % kThreads;
    EXPECT_EQ(out_[i], 2 * (100 + block) + (kThreads - 1 - t) + (kThreads - 1 - (t ^ 1)));
  }
}

TEST_F(CudaShimTest, MutantsAreCaught) {
  EXPECT_THAT(Run(Mutant::kDivergentBarrier),
              AllOf(HasSubstr("reverse: block 0: threads diverge: thread 0 waits in __syncthreads"),
                    HasSubstr("thread 32 has returned")));
  EXPECT_THAT(Run(Mutant::kEarlyReturn), HasSubstr("thread 5 has returned"));
  EXPECT_THAT(Run(Mutant::kTwoBarriers), HasSubstr("threads diverge"));
  EXPECT_THAT(Run(Mutant::kOutOfBounds), AllOf(HasSubstr("block 1, thread 63"),
                                               HasSubstr("outside the buffer at element 128")));
  EXPECT_THAT(Run(Mutant::kSharedOutOfBounds), HasSubstr("outside shared memory at element 64"));
  EXPECT_THAT(Run(Mutant::kMissingSync), HasSubstr("shared memory is read"));
  EXPECT_THAT(Run(Mutant::kMissingSyncBeforeReuse), HasSubstr("with no barrier between"));
  EXPECT_THAT(Run(Mutant::kUninitialised), HasSubstr("read before it was written"));
  EXPECT_THAT(Run(Mutant::kDivergentShuffle), HasSubstr("thread 32 waits in warp operation"));
  EXPECT_THAT(Run(Mutant::kShuffleOutsideMask), HasSubstr("lane"));
  EXPECT_EQ(Run(Mutant::kNone), "") << "a fault that was taken leaves the device usable";
}

TEST_F(CudaShimTest, AFaultSticksUntilItIsTaken) {
  int* out = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&out), 4), cudaSuccess);
  std::vector<int> host(2 * kThreads);
  ASSERT_TRUE(
      Launch("reverse", 2, kThreads, stream_, ReverseKernel, host.data(), out, Mutant::kNone).ok());
  EXPECT_EQ(stream_.Wait(), cudaErrorLaunchFailure) << "host memory is not device memory";
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 4), cudaErrorLaunchFailure);
  EXPECT_EQ(Launch("reverse", 1, kThreads, stream_, ReverseKernel, out, out, Mutant::kNone).code(),
            absl::StatusCode::kInternal);
  EXPECT_THAT(shim::TakeFault(), HasSubstr("outside the buffer at element 0"));
  EXPECT_EQ(cudaFree(out), cudaSuccess);
}

TEST_F(CudaShimTest, ImpossibleLaunchesAreRefused) {
  int* none = nullptr;
  EXPECT_EQ(
      Launch("reverse", 0, kThreads, stream_, ReverseKernel, none, none, Mutant::kNone).code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Launch("reverse", 1, 1025, stream_, ReverseKernel, none, none, Mutant::kNone).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaShimTest, NothingRunsBeforeItIsWaitedForAndEventsOrderStreams) {
  TestStream other;
  const std::vector<int> one = {1}, two = {2};
  int seen = 0;
  DeviceBytes buffer(stream_, one);
  ASSERT_EQ(cudaMemcpyAsync(buffer.data(), two.data(), 4, cudaMemcpyHostToDevice, stream_),
            cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(&seen, buffer.data(), 4, cudaMemcpyDeviceToHost, other), cudaSuccess);
  ASSERT_EQ(other.Wait(), cudaSuccess);
  EXPECT_EQ(seen, 1) << "without an event the other stream's copy has not run";

  cudaEvent_t event;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDefault), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(other, event), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(&seen, buffer.data(), 4, cudaMemcpyDeviceToHost, other), cudaSuccess);
  ASSERT_EQ(other.Wait(), cudaSuccess);
  EXPECT_EQ(seen, 2);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(CudaShimTest, CopiesOutsideAnAllocationAreRefused) {
  const std::vector<int> values(4);
  DeviceBytes buffer(stream_, values);
  int host[8] = {};
  EXPECT_EQ(cudaMemcpyAsync(buffer.data(), host, 17, cudaMemcpyHostToDevice, stream_),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host, host + 4, 4, cudaMemcpyDeviceToHost, stream_),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(host), cudaErrorInvalidValue);
  cudaGetLastError();
}

}  // namespace
}  // namespace kt::cuda
