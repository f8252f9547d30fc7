// SPDX-License-Identifier: Apache-2.0
// The indexer of DeepSeek-V3.2 for one query: scores as GFLOP/s (2 * head_dim per head and
// position), and the selection of 2048 positions, one thread.
#include <benchmark/benchmark.h>

#include <numeric>

#include "kernels/cpu/indexer/indexer.h"
#include "kernels/cpu/simd/testing.h"

namespace kt {
namespace {

constexpr int kHeads = 64, kHeadDim = 128, kTopK = 2048, kBlockTokens = 16;

void BM_Scores(benchmark::State& state) {
  const Isa isa = RunnableIsas().back();
  const int context = static_cast<int>(state.range(0)), blocks = context / kBlockTokens;
  TestRandom random(1);
  Activations keys(random.Normals(size_t(context) * kHeadDim), true);
  Activations q(random.Normals(kHeads * kHeadDim), true);
  const std::vector<float> w = random.Normals(kHeads);
  std::vector<int32_t> table(blocks);
  std::iota(table.begin(), table.end(), 0);
  std::vector<float> scores(context), scratch(IndexerScratchBytes(kHeads, kHeadDim) / 4);
  const IndexerArgs args{.q = q.data(),
                         .w = w.data(),
                         .cache = {keys.data(), kBlockTokens, kHeadDim, 0, true},
                         .block_table = table.data(),
                         .start_position = context - 1,
                         .tokens = 1,
                         .heads = kHeads,
                         .top_k = kTopK,
                         .scores = scores.data()};
  for (auto _ : state) {
    for (int task = 0; task < IndexerScoreTasks(args); ++task)
      IndexerScoreTask(isa, args, task, scratch.data());
    benchmark::ClobberMemory();
  }
  using benchmark::Counter;
  state.counters["GFLOP/s"] =
      Counter(2e-9 * context * kHeads * kHeadDim, Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Scores)->Arg(8192);

void BM_Select(benchmark::State& state) {
  const int context = static_cast<int>(state.range(0));
  std::vector<float> scores = TestRandom(1).Normals(context);
  std::vector<int32_t> selection(kTopK);
  const IndexerArgs args{.start_position = context - 1,
                         .tokens = 1,
                         .top_k = kTopK,
                         .scores = scores.data(),
                         .selection = selection.data()};
  for (auto _ : state) {
    IndexerSelect(args, 0);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_Select)->Arg(8192)->Arg(131072);

}  // namespace
}  // namespace kt

BENCHMARK_MAIN();
