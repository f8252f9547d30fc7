// SPDX-License-Identifier: Apache-2.0
// Latent attention of one query as GFLOP/s (2 * (2 * kv_lora + rope) per head and position) and
// GB/s of rows a task reads, one thread. Queries of a prefill do not share reads, so that one query
// stands for it too.
#include <benchmark/benchmark.h>

#include <numeric>

#include "kernels/cpu/attention/mla.h"
#include "kernels/cpu/simd/testing.h"

namespace kt {
namespace {

void BM_Mla(benchmark::State& state) {
  const Isa isa = RunnableIsas().back();
  const int heads = static_cast<int>(state.range(0)), context = static_cast<int>(state.range(1));
  const bool is_bf16 = state.range(2) != 0;
  const int kv_lora = 512, rope = 64, block_tokens = 16, blocks = context / block_tokens;
  Activations rows(std::vector<float>(blocks * MlaBlockElements(block_tokens, kv_lora, rope), 0.1f),
                   is_bf16);
  Activations q(std::vector<float>(heads * (kv_lora + rope), 0.1f), is_bf16);
  Activations out(size_t(heads) * kv_lora, is_bf16);
  std::vector<int32_t> table(blocks);
  std::iota(table.begin(), table.end(), 0);
  std::vector<float> scratch(MlaScratchBytes(kv_lora, rope) / sizeof(float));
  const MlaArgs args{.q = q.data(),
                     .q_head_stride = kv_lora + rope,
                     .out = out.data(),
                     .out_head_stride = kv_lora,
                     .cache = {rows.data(), block_tokens, kv_lora, rope, is_bf16},
                     .block_table = table.data(),
                     .start_position = context - 1,
                     .tokens = 1,
                     .heads = heads,
                     .scale = 0.1f};
  for (auto _ : state) {
    for (int task = 0; task < MlaTasks(args); ++task) MlaTask(isa, args, task, scratch.data());
    benchmark::ClobberMemory();
  }
  using benchmark::Counter;
  state.counters["GFLOP/s"] =
      Counter(2e-9 * context * heads * (2 * kv_lora + rope), Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = Counter(1e-9 * MlaTasks(args) * rows.size() * (is_bf16 ? 2 : 4),
                                   Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Mla)->ArgsProduct({{16, 128}, {4096}, {0, 1}});

}  // namespace
}  // namespace kt

BENCHMARK_MAIN();
