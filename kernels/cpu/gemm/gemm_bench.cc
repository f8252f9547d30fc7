// SPDX-License-Identifier: Apache-2.0
// One thread's product with weights that come from DRAM, by format and number of tokens. Compare
// items (weights) per second between formats, and bytes per second with the machine's read
// bandwidth. KT_FORCE_ISA picks the kernels; BM_OneDnn does the same products with oneDNN, in bf16
// where the CPU can, else in fp32.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "common/base/aligned_buffer.h"
#include "kernels/cpu/gemm/gemm.h"

namespace kt {
namespace {

constexpr size_t kArenaBytes = size_t{256} << 20;  // far above any cache
constexpr int kRows = 512, kColumns = 2048;

struct Format {
  const char* name;
  PackedFormat format;
};
const Format kFormats[] = {
    {"bf16", {}},
    {"bf16x2", {PackedCode::kBf16x2}},
    {"fp8_block", {PackedCode::kFp8E4m3, ScaleType::kF32, 1, 128, 0}},
    {"fp8_channel", {PackedCode::kFp8E4m3, ScaleType::kF32, 16, kColumns, 0}},
    {"int8_g128", {PackedCode::kInt8, ScaleType::kBf16, 16, 128, 0}},
    {"int4_g32", {PackedCode::kInt4, ScaleType::kBf16, 16, 32, 0}},
    {"int4_g128", {PackedCode::kInt4, ScaleType::kBf16, 16, 128, 0}},
    {"mxfp4", {PackedCode::kFp4E2m1, ScaleType::kE8m0, 16, 32, 0}},
};

void Run(benchmark::State& state, const GemmKernels& kernels, const std::string& name) {
  const PackedFormat& format = kFormats[state.range(0)].format;
  const int tokens = static_cast<int>(state.range(1));
  const size_t bytes = PackedBytes(kRows, kColumns, format);
  AlignedBuffer arena(kArenaBytes);
  std::mt19937 rng(1);
  for (size_t i = 0; i < arena.size() / 4; ++i)
    arena.As<uint32_t>()[i] = (rng() & 0x807f807fu) | 0x3c003c00u;  // bf16 around 2^-7
  const std::vector<bf16> x(size_t(tokens) * kColumns, ToBf16(0.5f));
  std::vector<float> y(size_t(tokens) * kRows);
  size_t at = 0;
  for (auto _ : state) {
    if (at + bytes > arena.size()) at = 0;
    PackedMatrix w{.data = arena.data() + at, .n = kRows, .k = kColumns, .format = format};
    Gemm(kernels, true, {x.data(), kColumns, tokens, w, y.data(), kRows}, 0, Tiles(kRows));
    benchmark::DoNotOptimize(y.data());
    at += bytes;
  }
  state.SetLabel(kFormats[state.range(0)].name + (" " + name));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
  state.SetItemsProcessed(state.iterations() * kRows * kColumns * int64_t{tokens});
}

void BM_Gemm(benchmark::State& state) {
  const absl::StatusOr<Isa> isa = SelectIsa();
  const absl::Status status = isa.ok() ? GemmReady(*isa) : isa.status();
  if (!status.ok()) return state.SkipWithError(status.ToString().c_str());
  Run(state, SelectGemm(*isa), IsaName(*isa));
}

void BM_OneDnn(benchmark::State& state) {
  const bool bf16 = OneDnnReady(OneDnnPanel::kBf16).ok();
  const OneDnnPanel panel = bf16 ? OneDnnPanel::kBf16 : OneDnnPanel::kF32;
  if (const absl::Status status = OneDnnReady(panel); !status.ok())
    return state.SkipWithError(status.ToString().c_str());
  Run(state, OneDnnGemm(panel), bf16 ? "oneDNN bf16" : "oneDNN fp32");
}

const std::vector<int64_t> kAllFormats = benchmark::CreateDenseRange(0, std::size(kFormats) - 1, 1);
BENCHMARK(BM_Gemm)
    ->ArgNames({"format", "tokens"})
    ->ArgsProduct({kAllFormats, {1, 2, 4, 16, 64, 256}});
BENCHMARK(BM_OneDnn)->ArgNames({"format", "tokens"})->ArgsProduct({kAllFormats, {16, 64, 256}});

}  // namespace
}  // namespace kt

BENCHMARK_MAIN();
