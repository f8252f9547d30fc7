// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/router/router.h"
#include "kernels/cpu/simd/vec.h"

namespace kt::KT_ISA_NAMESPACE {
namespace {

// One accumulator per logit whatever the block, so that a logit's bits do not depend on its
// neighbours.
template <int kTokens, int kExperts, typename X, typename W>
void Block(const X* x, int64_t x_stride, const W* weight, int hidden, float* logits,
           int64_t logits_stride) {
  VecF sum[kTokens][kExperts] = {};
  ForEachVector(hidden, [&](int64_t i, auto load, auto) {
    VecF w[kExperts];
#pragma GCC unroll 4
    for (int e = 0; e < kExperts; ++e) w[e] = load(weight + e * int64_t{hidden} + i);
#pragma GCC unroll 2
    for (int t = 0; t < kTokens; ++t) {
      VecF v = load(x + t * x_stride + i);
#pragma GCC unroll 4
      for (int e = 0; e < kExperts; ++e) sum[t][e] = Fma(v, w[e], sum[t][e]);
    }
  });
#pragma GCC unroll 2
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
    for (int e = 0; e < kExperts; ++e) logits[t * logits_stride + e] = ReduceAdd(sum[t][e]);
  }
}

template <typename X, typename W>
void RouterLogitsTyped(const RouterLogitsArgs& a) {
  const X* x = static_cast<const X*>(a.x);
  const W* weight = static_cast<const W*>(a.weight);
  for (int e = 0; e < a.experts;) {
    const int experts = a.experts - e >= 4 ? 4 : 1;
    const W* w = weight + int64_t{e} * a.hidden;
    for (int t = 0; t < a.tokens;) {
      const int tokens = a.tokens - t >= 2 ? 2 : 1;
      auto block = tokens == 2 ? (experts == 4 ? Block<2, 4, X, W> : Block<2, 1, X, W>)
                               : (experts == 4 ? Block<1, 4, X, W> : Block<1, 1, X, W>);
      block(x + t * a.x_stride, a.x_stride, w, a.hidden, a.logits + t * a.logits_stride + e,
            a.logits_stride);
      t += tokens;
    }
    e += experts;
  }
}

}  // namespace

void RouterLogits(const RouterLogitsArgs& args) noexcept {
  if (args.x_is_bf16) {
    args.weight_is_bf16 ? RouterLogitsTyped<bf16, bf16>(args)
                        : RouterLogitsTyped<bf16, float>(args);
  } else {
    args.weight_is_bf16 ? RouterLogitsTyped<float, bf16>(args)
                        : RouterLogitsTyped<float, float>(args);
  }
}

}  // namespace kt::KT_ISA_NAMESPACE
