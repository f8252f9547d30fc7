// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/gemm.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/gemm/gemm_isa.h"

namespace kt {
namespace {

constexpr GemmKernels kRows[] = {
    {Isa::kScalar,
     &scalar::MultiplyBf16,
     &scalar::MultiplyF32,
     {nullptr, nullptr, &scalar::DecodeFp8E4m3, &scalar::DecodeInt8, &scalar::DecodeInt4,
      &scalar::DecodeFp4E2m1}},
    {Isa::kAvx2,
     &avx2::MultiplyBf16,
     &avx2::MultiplyF32,
     {nullptr, nullptr, &avx2::DecodeFp8E4m3, &avx2::DecodeInt8, &avx2::DecodeInt4,
      &avx2::DecodeFp4E2m1}},
    {Isa::kAvx512f,
     &avx512f::MultiplyBf16,
     &avx512f::MultiplyF32,
     {nullptr, nullptr, &avx512f::DecodeFp8E4m3, &avx512f::DecodeInt8, &avx512f::DecodeInt4,
      &avx512f::DecodeFp4E2m1}},
    {Isa::kAvx512Bf16,
     &avx512bf16::MultiplyBf16,
     &avx512f::MultiplyF32,
     {nullptr, nullptr, &avx512bf16::DecodeFp8E4m3, &avx512f::DecodeInt8, &avx512f::DecodeInt4,
      &avx512f::DecodeFp4E2m1}},
};

constexpr int kRunTilesMin = 4;        // shorter runs waste the register blocks
constexpr int kTasksPerThread = 4;     // evens out threads that other work slows down
constexpr int kTokensPerTaskMin = 48;  // each task reads its weights once more

// Codes become bf16 tiles in a panel that stays in L1, a block of columns at a time: a scale group
// or kScaledColumns of it.
constexpr int kPanelBytes = 16384, kPanelTilesMax = 16;
constexpr int kPanelPairBytes = kTileRows * 2 * sizeof(bf16);
constexpr int kBlockTokens = 256;  // their x and y stay in L2 from one block to the next

float Widen(bf16 scale) { return ToFloat(scale); }
float Widen(float scale) { return scale; }
float Widen(uint8_t e8m0) {
  const uint32_t bits = e8m0 == 255 ? 0x7fc00000u : e8m0 == 0 ? 0x00400000u : uint32_t{e8m0} << 23;
  return std::bit_cast<float>(bits);
}

// The scales of one group of `tiles` tiles, as fp32 for every lane. `scales` are those of the first
// tile.
template <typename T>
void LoadScales(const uint8_t* scales, size_t tile_bytes, int lanes, int tiles, float* out) {
  for (int t = 0; t < tiles; ++t, scales += tile_bytes, out += kTileRows) {
    T scale[kTileRows];
    std::memcpy(scale, scales, lanes == 1 ? sizeof(T) : sizeof scale);
    if (lanes == 1) {
      std::fill(out, out + kTileRows, Widen(scale[0]));
    } else {
      std::transform(scale, scale + kTileRows, out, [](T x) { return Widen(x); });
    }
  }
}

void LoadScales(const uint8_t* scales, size_t tile_bytes, const PackedFormat& f, int tiles,
                float* out) {
  const auto load = f.scale == ScaleType::kF32    ? &LoadScales<float>
                    : f.scale == ScaleType::kBf16 ? &LoadScales<bf16>
                                                  : &LoadScales<uint8_t>;
  load(scales, tile_bytes, f.lanes, tiles, out);
}

// One token block of a matrix whose codes must be decoded.
void DecodeAndMultiply(MultiplyFn multiply, DecodeFn decode, size_t x_bytes, const GemmArgs& args,
                       int tile_begin, int tile_end) {
  const PackedMatrix& w = args.w;
  const PackedFormat& f = w.format;
  const bool scaled = f.lanes != 0;
  const size_t tile_bytes = PackedTileBytes(w.k, f), pair_bytes = PackedPairBytes(f.code);
  const size_t group_bytes = size_t(f.lanes) * ScaleBytes(f.scale);
  const int group_columns = scaled ? f.group : w.k;
  const int block_pairs = (std::min(group_columns, kScaledColumns) + 1) / 2;
  const int panel_tiles = std::min(kPanelTilesMax, kPanelBytes / (block_pairs * kPanelPairBytes));
  alignas(64) uint8_t panel[kPanelBytes];
  alignas(64) float scales[kPanelTilesMax * kTileRows];
  for (int tile = tile_begin, tiles; tile < tile_end; tile += tiles) {
    tiles = std::min(panel_tiles, tile_end - tile);
    const uint8_t* codes = w.data + tile * tile_bytes;
    const uint8_t* group_scales = codes + (size_t(w.k) + 1) / 2 * pair_bytes;
    int64_t group_end = scaled ? 0 : w.k;
    for (int column = 0, end; column < w.k; column = end) {
      if (column == group_end) {
        LoadScales(group_scales, tile_bytes, f, tiles, scales);
        group_scales += group_bytes;
        group_end += group_columns - (column == 0 ? f.origin : 0);
      }
      end = static_cast<int>(std::min<int64_t>({column + kScaledColumns, group_end, w.k}));
      const int pairs = (end - column + 1) / 2;
      for (int t = 0; t < tiles; ++t) {
        decode(codes + t * tile_bytes + column / 2 * pair_bytes, pairs,
               panel + size_t(t) * pairs * kPanelPairBytes);
      }
      multiply({.x = static_cast<const uint8_t*>(args.x) + column * x_bytes,
                .x_stride = args.x_stride,
                .tokens = args.tokens,
                .w = panel,
                .tile_bytes = int64_t{pairs} * kPanelPairBytes,
                .n = std::min(tiles * kTileRows, w.n - tile * kTileRows),
                .k = end - column,
                .y = args.y + int64_t{tile} * kTileRows,
                .y_stride = args.y_stride,
                .scales = scaled ? scales : nullptr,
                .add = column > 0},
               0, tiles);
    }
  }
}

}  // namespace

const GemmKernels& SelectGemm(Isa isa) { return kRows[static_cast<int>(isa)]; }

void Gemm(const GemmKernels& kernels, bool x_is_bf16, const GemmArgs& args, int tile_begin,
          int tile_end) noexcept {
  const PackedMatrix& w = args.w;
  const MultiplyFn multiply = x_is_bf16 ? kernels.multiply_bf16_x : kernels.multiply_f32_x;
  if (const DecodeFn decode = kernels.decode[static_cast<int>(w.format.code)]) {
    const size_t x_bytes = x_is_bf16 ? sizeof(bf16) : sizeof(float);
    for (int token = 0; token < args.tokens; token += kBlockTokens) {
      GemmArgs block = args;
      block.x = static_cast<const uint8_t*>(args.x) + token * args.x_stride * x_bytes;
      block.tokens = std::min(kBlockTokens, args.tokens - token);
      block.y = args.y + token * args.y_stride;
      DecodeAndMultiply(multiply, decode, x_bytes, block, tile_begin, tile_end);
    }
    return;
  }
  MultiplyArgs m{.x = args.x,
                 .x_stride = args.x_stride,
                 .tokens = args.tokens,
                 .w = w.data,
                 .tile_bytes = static_cast<int64_t>(PackedTileBytes(w.k, w.format)),
                 .n = w.n,
                 .k = w.k,
                 .y = args.y,
                 .y_stride = args.y_stride,
                 .scales = nullptr,
                 .add = false};
  multiply(m, tile_begin, tile_end);
  if (w.format.code != PackedCode::kBf16x2) return;
  m.w += (size_t(w.k) + 1) / 2 * kPanelPairBytes;
  m.add = true;
  multiply(m, tile_begin, tile_end);
}

void LinearParallel(const GemmKernels& kernels, bool x_is_bf16, const GemmArgs& args,
                    Parallel& parallel) noexcept {
  const int tiles = Tiles(args.w.n), threads = parallel.threads();
  const int tasks_wanted = threads == 1 ? 1 : threads * kTasksPerThread;
  const int tile_parts = std::clamp(tiles / kRunTilesMin, 1, tasks_wanted);
  const int token_parts =
      std::clamp(args.tokens / kTokensPerTaskMin, 1, std::max(1, tasks_wanted / tile_parts));
  parallel.Run(tile_parts * token_parts, [&](int task, int) {
    const int tile_part = task % tile_parts, token_part = task / tile_parts;
    const auto split = [](int total, int part, int parts) {
      return static_cast<int>(int64_t{total} * part / parts);
    };
    const int token = split(args.tokens, token_part, token_parts);
    GemmArgs part = args;
    part.tokens = split(args.tokens, token_part + 1, token_parts) - token;
    const size_t x_bytes = x_is_bf16 ? sizeof(bf16) : sizeof(float);
    part.x = static_cast<const char*>(args.x) + token * args.x_stride * x_bytes;
    part.y = args.y + token * args.y_stride;
    Gemm(kernels, x_is_bf16, part, split(tiles, tile_part, tile_parts),
         split(tiles, tile_part + 1, tile_parts));
  });
}

}  // namespace kt
