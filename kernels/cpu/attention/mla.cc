// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention/mla.h"

#include <algorithm>
#include <cstring>

#include "common/base/bf16.h"
#include "kernels/cpu/attention/mla_rows.h"
#include "kernels/cpu/simd/dispatch.h"

namespace kt {
namespace {

// Tasks of one query: enough heads to share each row read, few enough that a decode step of one
// token keeps several threads busy.
int HeadRuns(const MlaArgs& args) { return (args.heads + kMlaTaskHeads - 1) / kMlaTaskHeads; }

template <typename T>
void MlaWriteTyped(const MlaWriteArgs& a) {
  const MlaCache& cache = a.cache;
  const int64_t row_elements = MlaRowElements(cache.kv_lora, cache.rope);
  for (int i = 0; i < a.tokens; ++i) {
    const int position = a.start_position + i;
    const int64_t block = a.block_table[position / cache.block_tokens];
    T* const row = static_cast<T*>(cache.rows) +
                   (block * cache.block_tokens + position % cache.block_tokens) * row_elements;
    T* end = std::copy_n(static_cast<const T*>(a.c) + i * a.c_stride, cache.kv_lora, row);
    if (cache.rope > 0)
      end = std::copy_n(static_cast<const T*>(a.k_rope) + i * a.k_rope_stride, cache.rope, end);
    std::fill(end, row + row_elements, T{});
  }
}

}  // namespace

void MlaWrite(const MlaWriteArgs& args) noexcept {
  args.cache.is_bf16 ? MlaWriteTyped<bf16>(args) : MlaWriteTyped<float>(args);
}

void BlockCopy(const MlaCache& cache, int source, int target) noexcept {
  const int64_t bytes = MlaBlockElements(cache.block_tokens, cache.kv_lora, cache.rope) *
                        (cache.is_bf16 ? sizeof(bf16) : sizeof(float));
  std::memmove(static_cast<char*>(cache.rows) + target * bytes,
               static_cast<char*>(cache.rows) + source * bytes, bytes);
}

int MlaTasks(const MlaArgs& args) noexcept { return args.tokens * HeadRuns(args); }

size_t MlaScratchBytes(int kv_lora, int rope) noexcept {
  const size_t floats =
      MlaRowElements(kv_lora, rope) + MlaRowElements(kv_lora, 0) + kKeyTile + 2 + kSumLanes;
  return sizeof(float) * kMlaTaskHeads * floats;
}

KT_DEFINE_ISA_DISPATCH(MlaRows, MlaRowsArgs)

void MlaTask(Isa isa, const MlaArgs& args, int task, void* scratch) noexcept {
  const int runs = HeadRuns(args);
  const int token = args.tokens - 1 - task / runs;  // late queries have most keys: they go first
  const int head = task % runs * kMlaTaskHeads;
  const int32_t* positions = nullptr;
  int num_positions = args.start_position + token + 1;
  if (args.selection != nullptr) {
    positions = args.selection + int64_t{token} * args.top_k;
    num_positions = static_cast<int>(
        std::partition_point(positions, positions + args.top_k, [](int p) { return p >= 0; }) -
        positions);
  }
  MlaRows(isa,
          {&args, token, head, std::min(head + kMlaTaskHeads, args.heads), positions, num_positions,
           static_cast<int>(MlaRowElements(args.cache.kv_lora, args.cache.rope)),
           static_cast<float*>(scratch)});
}

}  // namespace kt
