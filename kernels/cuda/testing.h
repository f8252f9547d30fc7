// SPDX-License-Identifier: Apache-2.0
// What tests of kernels need of a device, the same on a GPU and on the shim.
#ifndef KT_KERNELS_CUDA_TESTING_H_
#define KT_KERNELS_CUDA_TESTING_H_

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

namespace kt::cuda {

class TestStream {
 public:
  TestStream() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  ~TestStream() { cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)
  cudaError_t Wait() const { return cudaStreamSynchronize(stream_); }

 private:
  cudaStream_t stream_ = nullptr;
};

// `bytes` of device memory, exactly, so that the shim sees every step outside.
class DeviceBytes {
 public:
  DeviceBytes(const TestStream& stream, const void* data, size_t bytes)
      : stream_(stream), bytes_(bytes) {
    EXPECT_EQ(cudaMalloc(&data_, bytes), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(data_, data, bytes, cudaMemcpyHostToDevice, stream), cudaSuccess);
    EXPECT_EQ(stream.Wait(), cudaSuccess);
  }
  template <typename T>
  DeviceBytes(const TestStream& stream, const std::vector<T>& values)
      : DeviceBytes(stream, values.data(), values.size() * sizeof(T)) {}
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  void* data() const { return data_; }
  template <typename T>
  T* As() const {
    return static_cast<T*>(data_);
  }
  void Read(void* target) const {
    EXPECT_EQ(cudaMemcpyAsync(target, data_, bytes_, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
    EXPECT_EQ(stream_.Wait(), cudaSuccess);
  }

 private:
  const TestStream& stream_;
  void* data_ = nullptr;
  size_t bytes_;
};

inline bool DevicePresent() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

}  // namespace kt::cuda

#endif  // KT_KERNELS_CUDA_TESTING_H_
