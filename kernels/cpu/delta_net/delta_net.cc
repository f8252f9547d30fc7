// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/delta_net/delta_net.h"

#include "kernels/cpu/delta_net/delta_net_head.h"
#include "kernels/cpu/simd/dispatch.h"

namespace kt {
namespace {

int Padded(int n) { return (n + 15) / 16 * 16; }

DeltaNetLayout LayoutOf(const DeltaNetShape& s) {
  DeltaNetLayout l{};
  l.group = s.value_heads / s.key_heads;
  l.key_width = Padded(s.key_dim);
  l.value_width = Padded(s.value_dim);
  l.channels = 2 * l.key_width + l.group * l.value_width;
  l.history = int64_t{l.group} * s.key_dim * l.value_width;
  l.state = l.history + int64_t{s.conv_kernel - 1} * l.channels;

  constexpr int64_t kSquare = int64_t{kDeltaNetTile} * kDeltaNetTile;
  l.conv = int64_t{s.conv_kernel - 1 + kDeltaNetTile} * l.channels;
  l.sums = l.conv + int64_t{s.conv_kernel} * l.channels;
  l.gates = l.sums + int64_t{kDeltaNetTile} * l.value_width;
  l.keys = l.gates + 3 * kDeltaNetTile;
  l.key_key = l.keys + int64_t{s.key_dim} * kDeltaNetTile;
  l.query_key = l.key_key + kSquare;
  l.corrections = l.query_key + kSquare;
  l.scores = l.corrections + kSquare;
  l.scratch = l.scores + kSquare;
  return l;
}

const void* At(const void* data, int64_t element, bool is_bf16) {
  return static_cast<const char*>(data) + element * (is_bf16 ? 2 : 4);
}

}  // namespace

DeltaNetProjections GroupedProjections(const DeltaNetShape& s, bool is_bf16, const void* qkvz,
                                       int64_t qkvz_stride, const void* ba,
                                       int64_t ba_stride) noexcept {
  const int64_t group = s.value_heads / s.key_heads, values = group * s.value_dim;
  const int64_t head = 2 * s.key_dim + 2 * values;
  auto part = [&](int64_t offset) {
    return DeltaNetRows{At(qkvz, offset, is_bf16), qkvz_stride, head, s.value_dim};
  };
  auto gate = [&](int64_t offset) {
    return DeltaNetRows{At(ba, offset, is_bf16), ba_stride, 2 * group, 1};
  };
  return {.q = part(0),
          .k = part(s.key_dim),
          .v = part(2 * s.key_dim),
          .z = part(2 * s.key_dim + values),
          .b = gate(0),
          .a = gate(group)};
}

DeltaNetProjections SeparateProjections(const DeltaNetShape& s, bool is_bf16, const void* qkv,
                                        int64_t qkv_stride, const void* z, int64_t z_stride,
                                        const void* b, int64_t b_stride, const void* a,
                                        int64_t a_stride) noexcept {
  const int64_t group = s.value_heads / s.key_heads, keys = int64_t{s.key_heads} * s.key_dim;
  auto part = [&](int64_t offset, int64_t key_head_stride) {
    return DeltaNetRows{At(qkv, offset, is_bf16), qkv_stride, key_head_stride, s.value_dim};
  };
  return {.q = part(0, s.key_dim),
          .k = part(keys, s.key_dim),
          .v = part(2 * keys, group * s.value_dim),
          .z = {z, z_stride, group * s.value_dim, s.value_dim},
          .b = {b, b_stride, group, 1},
          .a = {a, a_stride, group, 1}};
}

size_t DeltaNetStateBytes(const DeltaNetShape& shape) noexcept {
  return sizeof(float) * shape.key_heads * LayoutOf(shape).state;
}

int DeltaNetTasks(const DeltaNetShape& shape) noexcept { return shape.key_heads; }

size_t DeltaNetScratchBytes(const DeltaNetShape& shape) noexcept {
  return sizeof(float) * LayoutOf(shape).scratch;
}

KT_DEFINE_ISA_DISPATCH(DeltaNetHead, DeltaNetHeadArgs)

void DeltaNetTask(Isa isa, const DeltaNetArgs& args, int task, void* scratch) noexcept {
  const DeltaNetLayout layout = LayoutOf(args.shape);
  DeltaNetHead(isa, {&args, &layout, task, /*chunked=*/false, static_cast<float*>(scratch)});
}

void DeltaNetChunkedTask(Isa isa, const DeltaNetArgs& args, int task, void* scratch) noexcept {
  const DeltaNetLayout layout = LayoutOf(args.shape);
  DeltaNetHead(isa, {&args, &layout, task, /*chunked=*/true, static_cast<float*>(scratch)});
}

}  // namespace kt
