// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention/plain_attention.h"

#include <algorithm>

#include "kernels/cpu/attention/plain_attention_rows.h"
#include "kernels/cpu/simd/dispatch.h"

namespace kt {

int PlainAttentionTasks(const PlainAttentionArgs& args) noexcept {
  return (args.tokens + kPlainTaskTokens - 1) / kPlainTaskTokens * args.heads;
}

size_t PlainAttentionScratchBytes(int key_dim, int value_dim) noexcept {
  const size_t dims = (key_dim + 15) / 16 * 16 + (value_dim + 15) / 16 * 16;
  return sizeof(float) * (kKeyTile * dims + kPlainTaskTokens * (dims + kKeyTile + 2 + kSumLanes));
}

KT_DEFINE_ISA_DISPATCH(PlainAttentionRows, PlainAttentionRowsArgs)

void PlainAttentionTask(Isa isa, const PlainAttentionArgs& args, int task, void* scratch) noexcept {
  const int runs = PlainAttentionTasks(args) / args.heads;
  // Late queries have most keys: they go first.
  const int begin = (runs - 1 - task / args.heads) * kPlainTaskTokens;
  PlainAttentionRows(isa, {&args, begin, std::min(begin + kPlainTaskTokens, args.tokens),
                           task % args.heads, static_cast<float*>(scratch)});
}

}  // namespace kt
