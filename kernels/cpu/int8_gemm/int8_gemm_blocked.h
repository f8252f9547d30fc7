// SPDX-License-Identifier: Apache-2.0
// The loops around the vector code of an instruction set, included by its file only. V, a struct of
// that file's anonymous namespace, makes every instantiation local to the file, so no code compiled
// for one instruction set is linked into another.
//
// Loop order: runs of tiles that share the registers > blocks of tokens > k.
// The accumulators stay in registers over all of k. A run's weights come from DRAM for the first
// block of tokens and from L2 for the others; x is read from L1 or L2. A run is V::Tiles(tokens)
// tiles, each its own stream of memory.
//
// V provides
//   kUnitXBytes               of an x row, per unit of 64 bytes of weights
//   kTokensMax, Tiles(tokens) the register block; falls from one number of tokens to the next
//   BlockTokens(tokens)       how many tokens a block may have, <= kTokensMax
//   Acc, Start(x_sum), Save(sums, acc)
//                             16 sums
//   Step(acc, w, tile_bytes, x, x_stride)
//                             adds one unit of T tiles x M tokens
//   Scale(sums, w_scales, x_scale, y)
//                             y[16] = (w_scales[16] * x_scale) * sums[16]
#ifndef KT_KERNELS_CPU_INT8_GEMM_INT8_GEMM_BLOCKED_H_
#define KT_KERNELS_CPU_INT8_GEMM_INT8_GEMM_BLOCKED_H_

#include <cstdint>

#include "kernels/cpu/int8_gemm/int8_gemm_args.h"

namespace kt {

template <typename V>
class BlockedInt8Gemm {
 public:
  static void Run(const Int8MultiplyArgs& args, int tile_begin, int tile_end) {
    const int block_tokens = V::BlockTokens(args.tokens);
    const int blocks = (args.tokens + block_tokens - 1) / block_tokens;
    if (blocks == 0) return;
    const int run_tiles = V::Tiles((args.tokens + blocks - 1) / blocks);
    for (int tile = tile_begin, tiles; tile < tile_end; tile += tiles) {
      tiles = tile_end - tile < run_tiles ? tile_end - tile : run_tiles;
      for (int b = 0; b < blocks; ++b) {
        const int token = static_cast<int>(int64_t{args.tokens} * b / blocks);
        const int end = static_cast<int>(int64_t{args.tokens} * (b + 1) / blocks);
        RunTokens<V::kTokensMax>(args, token, end - token, tile, tiles);
      }
    }
  }

 private:
  using Acc = typename V::Acc;
  static constexpr int kLanes = 16;
  static constexpr int kUnitBytes = 64;

  // Finds the instantiation for the number of tokens in this block. The run may have the width for
  // one token more, which the other blocks have.
  template <int M>
  static void RunTokens(const Int8MultiplyArgs& args, int token, int tokens, int tile, int tiles) {
    if constexpr (M > 1) {
      if (tokens < M) return RunTokens<M - 1>(args, token, tokens, tile, tiles);
    }
    if (tiles == V::Tiles(M)) return Multiply<V::Tiles(M), M>(args, token, tile);
    if (tiles == V::Tiles(M + 1)) return Multiply<V::Tiles(M + 1), M>(args, token, tile);
    for (int t = tile; t < tile + tiles; ++t) Multiply<1, M>(args, token, t);
  }

  // T tiles x M tokens of outputs.
  template <int T, int M>
  static void Multiply(const Int8MultiplyArgs& args, int token, int tile) {
    const char* tiles = reinterpret_cast<const char*>(args.w) + tile * args.tile_bytes;
    const int8_t* x = args.x + token * args.x_stride;
    alignas(64) int32_t sums[T][M][kLanes];
    {
      Acc acc[T][M];
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        acc[0][m] = V::Start(args.x_sums[token + m]);
#pragma GCC unroll 16
        for (int t = 1; t < T; ++t) acc[t][m] = acc[0][m];
      }
      const char* w = tiles;
      for (int u = 0; u < args.units; ++u, w += kUnitBytes, x += V::kUnitXBytes)
        V::Step(acc, w, args.tile_bytes, x, args.x_stride);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) V::Save(sums[t][m], acc[t][m]);
      }
    }
    for (int t = 0; t < T; ++t) {
      const char* scales = tiles + t * args.tile_bytes + int64_t{args.units} * kUnitBytes;
      const int column = (tile + t) * kLanes;
      for (int m = 0; m < M; ++m) {
        float* y = args.y + (token + m) * args.y_stride + column;
        float full[kLanes];  // the last tile where n is no multiple of 16
        const bool fits = column + kLanes <= args.n;
        V::Scale(sums[t][m], scales, args.x_scales[token + m], fits ? y : full);
        if (!fits) __builtin_memcpy(y, full, (args.n - column) * sizeof *y);
      }
    }
  }
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_INT8_GEMM_INT8_GEMM_BLOCKED_H_
