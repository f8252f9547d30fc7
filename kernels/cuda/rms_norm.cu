// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"
#include "kernels/cuda/rms_norm.h"

namespace kt::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
KT_KERNEL void RmsNormKernel(GlobalPointer<const T> x, int64_t x_stride, GlobalPointer<T> y,
                             int64_t y_stride, GlobalPointer<const float> weight, int groups, int n,
                             float eps) {
  KT_SHARED(float, partial, kThreads / kWarpThreads);
  const int64_t row = blockIdx.x / groups, group = blockIdx.x % groups;
  x = x + (row * x_stride + group * n);
  y = y + (row * y_stride + group * n);
  float squares = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const float v = Widen(x[i]);
    squares = fmaf(v, v, squares);
  }
  const float scale =
      1.0f / sqrtf(BlockSum<kThreads>(squares, partial) / static_cast<float>(n) + eps);
  for (int i = threadIdx.x; i < n; i += kThreads) y[i] = Narrow<T>(Widen(x[i]) * scale * weight[i]);
}

template <typename T>
absl::Status LaunchRmsNorm(const RmsNormArgs& a, cudaStream_t stream) {
  return Launch("rms_norm", int64_t{a.rows} * a.groups, kThreads, stream, RmsNormKernel<T>,
                static_cast<const T*>(a.x), a.x_stride, static_cast<T*>(a.y), a.y_stride, a.weight,
                a.groups, a.n, a.eps);
}

}  // namespace

absl::Status RmsNorm(const RmsNormArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return absl::OkStatus();
  return args.is_bf16 ? LaunchRmsNorm<bf16>(args, stream) : LaunchRmsNorm<float>(args, stream);
}

}  // namespace kt::cuda
