// SPDX-License-Identifier: Apache-2.0
// Gated delta net: a linear attention whose state has a fixed size. Per layer and sequence:
//   x     = silu(causal depthwise convolution of q, k and v)
//   q, k  = x / sqrt(sum x^2 + 1e-6), q times key_dim^-0.5
//   g     = -exp(a_log) softplus(a + dt_bias)     softplus(x) = x for x > 20
//   u     = sigmoid(b) (v - e^g S^T k)            per value head, S [key_dim, value_dim]
//   S     = e^g S + k u^T
//   o     = S^T q
//   out   = o / sqrt(mean o^2 + norm_eps) * norm_weight * silu(z)
// all in fp32, one rounding to the activation type per element of out.
#ifndef KT_KERNELS_CPU_DELTA_NET_DELTA_NET_H_
#define KT_KERNELS_CPU_DELTA_NET_DELTA_NET_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/features/cpu_features.h"

namespace kt {

// Value head h = key head * (value_heads / key_heads) + i uses the q and k of that key head.
struct DeltaNetShape {
  int key_heads = 0;
  int value_heads = 0;  // a multiple of key_heads
  int key_dim = 0;      // of a head
  int value_dim = 0;    // of a head
  int conv_kernel = 0;  // >= 1
};

// Where one of q, k, v, z, b, a lies among the projections of a step, of the activation type: the
// head's elements adjoin; strides in elements.
struct DeltaNetRows {
  const void* data = nullptr;  // of token 0, key head 0, its value head 0
  int64_t token_stride = 0;
  int64_t key_head_stride = 0;
  int64_t value_head_stride = 0;  // between the value heads of a key head; unused for q and k
};
struct DeltaNetProjections {
  DeltaNetRows q, k;  // key_dim per key head
  DeltaNetRows v, z;  // value_dim per value head
  DeltaNetRows b, a;  // one element per value head
};
// qkvz [tokens, key_heads, q | k | v of each value head | z of each value head] · ba [tokens,
// key_heads, b of each value head | a of each value head]. Strides between tokens.
DeltaNetProjections GroupedProjections(const DeltaNetShape& shape, bool is_bf16, const void* qkvz,
                                       int64_t qkvz_stride, const void* ba,
                                       int64_t ba_stride) noexcept;
// qkv [tokens, q of all key heads | k of all key heads | v of all value heads] · z [tokens,
// value_heads, value_dim] · b, a [tokens, value_heads].
DeltaNetProjections SeparateProjections(const DeltaNetShape& shape, bool is_bf16, const void* qkv,
                                        int64_t qkv_stride, const void* z, int64_t z_stride,
                                        const void* b, int64_t b_stride, const void* a,
                                        int64_t a_stride) noexcept;

// The state of one layer and sequence: S of every value head and the convolution's last
// conv_kernel - 1 inputs, in fp32. Its layout is the kernel's own; it may be copied as bytes.
size_t DeltaNetStateBytes(const DeltaNetShape& shape) noexcept;

// The consecutive tokens of one sequence, at least one.
//
// Shapes   conv_weight [channels, conv_kernel], channels = q of all key heads, k of all key heads,
// v
//          of all value heads · a_log, dt_bias [value_heads] · norm_weight [value_dim] · out
//          [tokens, value_heads * value_dim] of the activation type, out_stride in elements
// State    state_target = what state_source becomes by these tokens; state_source may be null (the
//          sequence begins) or state_target, else it is left as it is and the buffers do not
//          overlap. Both aligned to 64 bytes
// Order    tokens are taken one after another: the bits of out and of the state do not depend on
// how
//          a sequence is cut into calls
// Threads  the tasks of a call are independent (one per key head); each running task needs its own
//          scratch of DeltaNetScratchBytes(), aligned to 64 bytes
struct DeltaNetArgs {
  DeltaNetShape shape;
  DeltaNetProjections projections;
  const float* conv_weight = nullptr;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  const float* norm_weight = nullptr;
  float norm_eps = 0;
  const void* state_source = nullptr;
  void* state_target = nullptr;
  void* out = nullptr;
  int64_t out_stride = 0;
  int tokens = 0;
  bool is_bf16 = false;
};
int DeltaNetTasks(const DeltaNetShape& shape) noexcept;
size_t DeltaNetScratchBytes(const DeltaNetShape& shape) noexcept;
void DeltaNetTask(Isa isa, const DeltaNetArgs& args, int task, void* scratch) noexcept;

// The same by chunks of 64 tokens: matrix products instead of a pass over the state per token.
// Equal up to rounding; bits depend on how the sequence is cut.
void DeltaNetChunkedTask(Isa isa, const DeltaNetArgs& args, int task, void* scratch) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_DELTA_NET_DELTA_NET_H_
