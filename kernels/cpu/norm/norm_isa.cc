// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/norm/norm.h"
#include "kernels/cpu/simd/vec.h"

namespace kt::KT_ISA_NAMESPACE {
namespace {

template <typename T>
float SumOfSquares(const T* x, int n) {
  constexpr int kChains = 4;  // covers the latency of a fused multiply-add
  VecF sum[kChains] = {};
  int i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes) {
    for (int c = 0; c < kChains; ++c) {
      VecF v = Load(x + i + c * kLanes);
      sum[c] = Fma(v, v, sum[c]);
    }
  }
  ForEachVector(n - i, [&](int64_t j, auto load, auto) {
    VecF v = load(x + i + j);
    sum[0] = Fma(v, v, sum[0]);
  });
  return ReduceAdd((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <typename T>
void RmsNormRows(const RmsNormArgs& a) {
  for (int row = 0; row < a.rows; ++row) {
    for (int group = 0; group < a.groups; ++group) {
      const T* x = static_cast<const T*>(a.x) + row * a.x_stride + int64_t{group} * a.n;
      T* y = static_cast<T*>(a.y) + row * a.y_stride + int64_t{group} * a.n;
      VecF scale =
          Set(1.0f / __builtin_sqrtf(SumOfSquares(x, a.n) / static_cast<float>(a.n) + a.eps));
      ForEachVector(a.n, [&](int64_t i, auto load, auto store) {
        store(y + i, load(x + i) * scale * load(a.weight + i));
      });
    }
  }
}

template <typename T>
void LayerNormRows(const LayerNormArgs& a) {
  const float inverse_n = 1.0f / static_cast<float>(a.n);
  for (int row = 0; row < a.rows; ++row) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    T* y = static_cast<T*>(a.y) + row * a.y_stride;
    VecF sum = {};
    ForEachVector(a.n, [&](int64_t i, auto load, auto) { sum += load(x + i); });
    const VecF mean = Set(ReduceAdd(sum) * inverse_n);
    VecF squares = {};
    ForEachVector(a.n, [&](int64_t i, auto load, auto) {
      float centred[kLanes];
      Store(centred, load(x + i) - mean);
      const VecF v = load(centred);  // zero beyond the end of x, where the difference is not
      squares = Fma(v, v, squares);
    });
    const float variance = ReduceAdd(squares) * inverse_n;
    const VecF scale = Set(1.0f / __builtin_sqrtf(variance + a.eps));
    ForEachVector(a.n, [&](int64_t i, auto load, auto store) {
      store(y + i, Fma((load(x + i) - mean) * scale, load(a.weight + i), load(a.bias + i)));
    });
  }
}

}  // namespace

void RmsNorm(const RmsNormArgs& args) noexcept {
  args.is_bf16 ? RmsNormRows<bf16>(args) : RmsNormRows<float>(args);
}

void LayerNorm(const LayerNormArgs& args) noexcept {
  args.is_bf16 ? LayerNormRows<bf16>(args) : LayerNormRows<float>(args);
}

}  // namespace kt::KT_ISA_NAMESPACE
