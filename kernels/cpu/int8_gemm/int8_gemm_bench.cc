// SPDX-License-Identifier: Apache-2.0
// One thread's product of int8 activations with weights that come from DRAM, by format and number
// of tokens, and the rounding of the activations. Compare items (products) per second between
// formats, and bytes per second with the machine's read bandwidth. KT_FORCE_ISA picks the kernels.
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <vector>

#include "common/base/aligned_buffer.h"
#include "kernels/cpu/int8_gemm/int8_gemm.h"

namespace kt {
namespace {

constexpr size_t kArenaBytes = size_t{256} << 20;  // far above any cache
constexpr int kRows = 768, kColumns = 2048;

struct Rows {
  explicit Rows(int tokens)
      : codes(tokens * Int8RowBytes(kColumns)), scales(tokens), sums(tokens) {}
  Int8Rows view() { return {codes.data(), Int8RowBytes(kColumns), scales.data(), sums.data()}; }
  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
};

void BM_Int8Gemm(benchmark::State& state) {
  const absl::StatusOr<Isa> isa = SelectIsa();
  if (!isa.ok()) {
    state.SkipWithError(isa.status().ToString().c_str());
    return;
  }
  const PackedCode code = state.range(0) == 8 ? PackedCode::kInt8 : PackedCode::kInt4;
  const PackedFormat format = Int8XFormat(code, kColumns);
  const int tokens = static_cast<int>(state.range(1));
  const size_t bytes = PackedBytes(kRows, kColumns, format);
  AlignedBuffer arena(kArenaBytes);
  std::mt19937 rng(1);
  for (size_t i = 0; i < arena.size() / 4; ++i) arena.As<uint32_t>()[i] = rng() & 0x3fffffffu;
  const std::vector<bf16> x(size_t(tokens) * kColumns, ToBf16(0.5f));
  Rows rows(tokens);
  QuantizeRows(code, true, x.data(), kColumns, tokens, kColumns, rows.view());
  std::vector<float> y(size_t(tokens) * kRows);
  size_t at = 0;
  for (auto _ : state) {
    if (at + bytes > arena.size()) at = 0;
    const PackedMatrix w{.data = arena.data() + at, .n = kRows, .k = kColumns, .format = format};
    Int8Gemm(SelectInt8Gemm(*isa), {rows.view(), tokens, w, y.data(), kRows}, 0, Tiles(kRows));
    benchmark::DoNotOptimize(y.data());
    at += bytes;
  }
  state.SetLabel(IsaName(*isa));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
  state.SetItemsProcessed(state.iterations() * kRows * kColumns * int64_t{tokens});
}
BENCHMARK(BM_Int8Gemm)
    ->ArgNames({"bits", "tokens"})
    ->ArgsProduct({{8, 4}, {1, 2, 3, 4, 8, 16, 64, 512}});

void BM_QuantizeRows(benchmark::State& state) {
  const std::vector<bf16> x(kColumns, ToBf16(0.5f));
  Rows rows(1);
  for (auto _ : state) {
    QuantizeRows(PackedCode::kInt4, true, x.data(), kColumns, 1, kColumns, rows.view());
    benchmark::DoNotOptimize(rows.codes.data());
  }
  state.SetItemsProcessed(state.iterations() * kColumns);
}
BENCHMARK(BM_QuantizeRows);

// Packing BF16 as it is loaded: bytes of the checkpoint per second.
void BM_Pack(benchmark::State& state) {
  const PackedCode code = state.range(0) == 8 ? PackedCode::kInt8 : PackedCode::kInt4;
  const PackedFormat format = Int8XFormat(code, kColumns);
  AlignedBuffer arena(kArenaBytes), packed(PackedBytes(kRows, kColumns, format));
  constexpr size_t kBytes = size_t{2} * kRows * kColumns;
  size_t at = 0;
  for (auto _ : state) {
    if (at + kBytes > arena.size()) at = 0;
    const MatrixView view{
        .n = kRows, .k = kColumns, .codes = arena.data() + at, .code_row_stride = 2 * kColumns};
    benchmark::DoNotOptimize(Pack(view, format, 0, Tiles(kRows), packed.data()));
    at += kBytes;
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kBytes));
}
BENCHMARK(BM_Pack)->ArgName("bits")->Arg(8)->Arg(4);

}  // namespace
}  // namespace kt

BENCHMARK_MAIN();
