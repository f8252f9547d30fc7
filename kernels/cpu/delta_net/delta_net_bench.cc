// SPDX-License-Identifier: Apache-2.0
// One key head of Qwen3-Next (two value heads, 128 x 128), one thread. Prefill as tokens/s of both
// forms; decode of many states in turn as GB/s of state read and written.
#include <benchmark/benchmark.h>

#include "kernels/cpu/delta_net/delta_net.h"
#include "kernels/cpu/simd/testing.h"

namespace kt {
namespace {

void RunDeltaNet(benchmark::State& state, bool chunked, int tokens, int sequences) {
  const Isa isa = RunnableIsas().back();
  const DeltaNetShape shape{1, 2, 128, 128, 4};
  const int64_t qkvz_stride = 6 * 128, floats = DeltaNetStateBytes(shape) / sizeof(float);
  std::vector<bf16> qkvz(tokens * qkvz_stride, ToBf16(0.1f)), ba(tokens * 4, ToBf16(0.1f)),
      out(tokens * 256);
  std::vector<float> conv(4 * 512, 0.1f), head(2, 0.1f), norm(128, 1.0f);
  std::vector<float> states(2 * sequences * floats + 16),
      scratch(DeltaNetScratchBytes(shape) / sizeof(float) + 16);
  auto aligned = [](std::vector<float>& v) {
    return v.data() + (64 - reinterpret_cast<uintptr_t>(v.data()) % 64) % 64 / sizeof(float);
  };
  DeltaNetArgs args{
      .shape = shape,
      .projections = GroupedProjections(shape, true, qkvz.data(), qkvz_stride, ba.data(), 4),
      .conv_weight = conv.data(),
      .a_log = head.data(),
      .dt_bias = head.data(),
      .norm_weight = norm.data(),
      .norm_eps = 1e-6f,
      .out = out.data(),
      .out_stride = 256,
      .tokens = tokens,
      .is_bf16 = true};
  for (auto _ : state) {
    for (int i = 0; i < sequences; ++i) {
      args.state_source = aligned(states) + 2 * i * floats;
      args.state_target = aligned(states) + (2 * i + 1) * floats;
      (chunked ? DeltaNetChunkedTask : DeltaNetTask)(isa, args, 0, aligned(scratch));
    }
    benchmark::ClobberMemory();
  }
  state.counters["tokens/s"] =
      benchmark::Counter(double(tokens) * sequences, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = benchmark::Counter(2e-9 * sequences * DeltaNetStateBytes(shape),
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void BM_Prefill(benchmark::State& state) { RunDeltaNet(state, false, 1024, 1); }
void BM_PrefillChunked(benchmark::State& state) { RunDeltaNet(state, true, 1024, 1); }
void BM_Decode(benchmark::State& state) { RunDeltaNet(state, false, 1, 512); }
BENCHMARK(BM_Prefill);
BENCHMARK(BM_PrefillChunked);
BENCHMARK(BM_Decode);

}  // namespace
}  // namespace kt

BENCHMARK_MAIN();
