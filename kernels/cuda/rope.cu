// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"
#include "kernels/cuda/rope.h"

namespace kt::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T>
KT_KERNEL void RopeKernel(GlobalPointer<T> x, int64_t token_stride, GlobalPointer<const float> cos,
                          GlobalPointer<const float> sin, int heads, int64_t head_stride, int half,
                          bool interleaved) {
  x = x + blockIdx.x * token_stride;
  cos = cos + int64_t{blockIdx.x} * half;
  sin = sin + int64_t{blockIdx.x} * half;
  for (int pair = threadIdx.x; pair < heads * half; pair += kThreads) {
    const int j = pair % half;
    const int64_t first = pair / half * head_stride + (interleaved ? 2 * j : j);
    const int64_t second = first + (interleaved ? 1 : half);
    const float a = Widen(x[first]), b = Widen(x[second]), c = cos[j], s = sin[j];
    x[first] = Narrow<T>(fmaf(a, c, -(b * s)));
    x[second] = Narrow<T>(fmaf(b, c, a * s));
  }
}

template <typename T>
absl::Status LaunchRope(const RopeArgs& a, cudaStream_t stream) {
  return Launch("rope", a.tokens, kThreads, stream, RopeKernel<T>, static_cast<T*>(a.x),
                a.token_stride, a.cos, a.sin, a.heads, a.head_stride, a.rotary_dim / 2,
                a.interleaved);
}

}  // namespace

absl::Status ApplyRope(const RopeArgs& args, cudaStream_t stream) {
  if (args.tokens == 0) return absl::OkStatus();
  return args.is_bf16 ? LaunchRope<bf16>(args, stream) : LaunchRope<float>(args, stream);
}

}  // namespace kt::cuda
