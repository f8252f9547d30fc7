// SPDX-License-Identifier: Apache-2.0
// Prefill as GFLOP/s (4 * head_dim per visible key), decode as GB/s of keys and values, one thread.
#include <benchmark/benchmark.h>

#include <numeric>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/simd/testing.h"

namespace kt {
namespace {

void RunAttention(benchmark::State& state, int context, int tokens) {
  const Isa isa = RunnableIsas().back();
  const int heads = static_cast<int>(state.range(0)), kv_heads = static_cast<int>(state.range(1)),
            head_dim = static_cast<int>(state.range(2));
  const int block_tokens = 16, blocks = context / block_tokens;
  std::vector<bf16> k(blocks * KBlockElements(kv_heads, block_tokens, head_dim), ToBf16(0.1f));
  std::vector<bf16> v(blocks * VBlockElements(kv_heads, block_tokens, head_dim), ToBf16(0.1f));
  std::vector<bf16> q(int64_t{tokens} * heads * head_dim, ToBf16(0.1f)), out(q.size());
  std::vector<int32_t> table(blocks);
  std::iota(table.begin(), table.end(), 0);
  std::vector<float> scratch(AttentionScratchBytes(heads, kv_heads, head_dim) / sizeof(float));
  AttentionArgs args{q.data(),
                     int64_t{heads} * head_dim,
                     out.data(),
                     int64_t{heads} * head_dim,
                     {k.data(), v.data(), block_tokens, kv_heads, head_dim, true},
                     table.data(),
                     context - tokens,
                     tokens,
                     heads,
                     0.125f};
  for (auto _ : state) {
    for (int task = 0; task < AttentionTasks(args); ++task)
      AttentionTask(isa, args, task, scratch.data());
    benchmark::ClobberMemory();
  }
  const double pairs = double(tokens) * (context - tokens) + double(tokens) * (tokens + 1) / 2;
  state.counters["GFLOP/s"] = benchmark::Counter(4e-9 * pairs * heads * head_dim,
                                                 benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = benchmark::Counter(1e-9 * (k.size() + v.size()) * sizeof(bf16),
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void BM_Prefill2048(benchmark::State& state) { RunAttention(state, 2048, 2048); }
void BM_Decode(benchmark::State& state) { RunAttention(state, 1 << 16, 1); }
BENCHMARK(BM_Prefill2048)->Args({9, 3, 64})->Args({32, 4, 128});
BENCHMARK(BM_Decode)->Args({9, 3, 64})->Args({32, 4, 128});

}  // namespace
}  // namespace kt

BENCHMARK_MAIN();
