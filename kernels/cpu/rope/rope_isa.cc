// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rope/rope.h"
#include "kernels/cpu/simd/vec.h"

namespace kt::KT_ISA_NAMESPACE {
namespace {

template <typename T>
void TurnHalfSplit(T* x, const float* cos, const float* sin, int half) {
  ForEachVector(half, [&](int64_t j, auto load, auto store) {
    VecF a = load(x + j), b = load(x + half + j), c = load(cos + j), s = load(sin + j);
    store(x + j, Fma(a, c, -(b * s)));
    store(x + half + j, Fma(b, c, a * s));
  });
}

template <typename T>
void TurnInterleaved(T* x, const float* cos, const float* sin, int half) {
  ForEachVector(half, [&](int64_t j, auto load, auto store) {
    const int pairs = half - j < kLanes ? static_cast<int>(half - j) : kLanes;
    T first[kLanes] = {}, second[kLanes] = {};
    for (int i = 0; i < pairs; ++i) {
      first[i] = x[2 * (j + i)];
      second[i] = x[2 * (j + i) + 1];
    }
    VecF a = Load(first), b = Load(second), c = load(cos + j), s = load(sin + j);
    Store(first, Fma(a, c, -(b * s)));
    Store(second, Fma(b, c, a * s));
    for (int i = 0; i < pairs; ++i) {
      x[2 * (j + i)] = first[i];
      x[2 * (j + i) + 1] = second[i];
    }
  });
}

template <typename T>
void ApplyRopeTyped(const RopeArgs& a) {
  const int half = a.rotary_dim / 2;
  for (int t = 0; t < a.tokens; ++t) {
    const float* cos = a.cos + int64_t{t} * half;
    const float* sin = a.sin + int64_t{t} * half;
    for (int h = 0; h < a.heads; ++h) {
      T* x = static_cast<T*>(a.x) + t * a.token_stride + h * a.head_stride;
      a.interleaved ? TurnInterleaved(x, cos, sin, half) : TurnHalfSplit(x, cos, sin, half);
    }
  }
}

}  // namespace

void ApplyRope(const RopeArgs& args) noexcept {
  args.is_bf16 ? ApplyRopeTyped<bf16>(args) : ApplyRopeTyped<float>(args);
}

}  // namespace kt::KT_ISA_NAMESPACE
