// SPDX-License-Identifier: Apache-2.0
// The loops around the vector code of an instruction set, included by its file only. V, a struct of
// that file's anonymous namespace, makes every instantiation local to the file, so no code compiled
// for one instruction set is linked into another.
//
// Loop order: groups of 8 tiles > blocks of k > blocks of up to V::kTokensMax tokens > runs of
// tiles that share the registers. A token block's x is copied to a panel on the stack in the form V
// multiplies by (broadcast pairs of k, the odd last one padded with zero), which serves all tiles
// of the group from L1; a group's weights of one k block stay in L2 for all token blocks. Between
// blocks of k the accumulators rest in y as fp32, which changes no bits; a scaled product has one
// block.
//
// V provides
//   Element              what the panel holds
//   Fill(x, count, out)  writes count elements of an x row to the panel, and a zero behind an odd
//                        count
//   kTokensMax, ReuseTiles(tokens), StreamTiles(tokens)
//                        the register block, when weights are read again for other tokens and when
//                        not
//   Acc, Zero(), Load(y), Store(y, acc)
//                        16 outputs
//   Fold(scales, acc, y) scales * acc + y, rounded once
//   Step(acc, w, tile_bytes, x, x_stride)
//                        adds one pair of k to T tiles x M tokens: first the even element, then the
//                        odd
#ifndef KT_KERNELS_CPU_GEMM_GEMM_BLOCKED_H_
#define KT_KERNELS_CPU_GEMM_GEMM_BLOCKED_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm/gemm_args.h"

namespace kt {

template <typename V>
class BlockedGemm {
 public:
  template <typename X>
  static void Run(const MultiplyArgs& args, int tile_begin, int tile_end) {
    const int token_blocks = (args.tokens + V::kTokensMax - 1) / V::kTokensMax;
    if (token_blocks == 0) return;
    const int pairs = (args.k + 1) / 2;
    const int tokens_per_block = (args.tokens + token_blocks - 1) / token_blocks;
    const int pairs_per_block = kPanelElements / 2 / tokens_per_block;
    alignas(64) Element panel[kPanelElements];
    for (int group = tile_begin; group < tile_end; group += kGroupTiles) {
      const int group_end = group + kGroupTiles < tile_end ? group + kGroupTiles : tile_end;
      for (int pair = 0; pair < pairs; pair += pairs_per_block) {
        const int block_pairs = pairs - pair < pairs_per_block ? pairs - pair : pairs_per_block;
        for (int b = 0; b < token_blocks; ++b) {
          const int token = static_cast<int>(int64_t{args.tokens} * b / token_blocks);
          const int block_tokens =
              static_cast<int>(int64_t{args.tokens} * (b + 1) / token_blocks) - token;
          for (int m = 0; m < block_tokens; ++m) {
            const X* x = static_cast<const X*>(args.x) + (token + m) * args.x_stride + 2 * pair;
            const int columns = args.k - 2 * pair;
            V::Fill(x, columns < 2 * block_pairs ? columns : 2 * block_pairs,
                    panel + 2 * m * block_pairs);
          }
          // What is read after these weights: the next pairs of the group, or the next group.
          const int64_t next = pair + block_pairs < pairs
                                   ? kPairBytes * block_pairs
                                   : kGroupTiles * args.tile_bytes - kPairBytes * pair;
          const Block block{args, token, pair, block_pairs, b, token_blocks, next, panel};
          RunTiles<V::kTokensMax>(block, block_tokens, group, group_end);
        }
      }
    }
  }

 private:
  using Element = typename V::Element;
  using Acc = typename V::Acc;
  static constexpr int kPanelElements = 16384 / sizeof(Element);  // half of the smallest L1
  static_assert(kPanelElements / V::kTokensMax >= kScaledColumns);
  static constexpr int kGroupTiles = 8;
  static constexpr int64_t kAheadBytes =
      4096;  // of all tiles together: latency x bandwidth of one core, 130 ns x 30 GB/s
  static constexpr int kLanes = 16;
  static constexpr int64_t kPairBytes = 64;  // of 16 weight rows

  struct Block {
    const MultiplyArgs& args;
    int token, pair, pairs;
    int pass, passes;  // of token blocks over the same weights
    int64_t next;      // bytes from these weights to those that the passes will read next
    const Element* panel;
  };

  // Finds the instantiation for the number of tokens in this block.
  template <int M>
  static void RunTiles(const Block& block, int tokens, int tile, int tile_end) {
    if constexpr (M > 1) {
      if (tokens < M) return RunTiles<M - 1>(block, tokens, tile, tile_end);
    }
    constexpr int kStreamTiles = V::StreamTiles(M), kReuseTiles = V::ReuseTiles(M);
    const int full_end = tile_end * kLanes <= block.args.n ? tile_end : tile_end - 1;
    if (block.passes == 1) {
      tile = RunFull<kStreamTiles, M>(block, tile, full_end);
    } else {
      tile = RunFull<kReuseTiles, M>(block, tile, full_end);
    }
    tile = RunFull<1, M>(block, tile, full_end);
    if (tile < tile_end) RunRagged<M>(block, tile);
  }

  template <int T, int M>
  static int RunFull(const Block& block, int tile, int tile_end) {
    for (; tile + T <= tile_end; tile += T) {
      Multiply<T, M>(block, tile, block.args.y + block.token * block.args.y_stride + tile * kLanes,
                     block.args.y_stride);
    }
    return tile;
  }

  // The last tile where n is no multiple of 16: through a full-width copy of its outputs.
  template <int M>
  static void RunRagged(const Block& block, int tile) {
    float full[M * kLanes] = {};
    float* y = block.args.y + block.token * block.args.y_stride + tile * kLanes;
    const int lanes = block.args.n - tile * kLanes;
    if (block.pair > 0 || block.args.add) {
      for (int m = 0; m < M; ++m) {
        for (int i = 0; i < lanes; ++i) full[m * kLanes + i] = y[m * block.args.y_stride + i];
      }
    }
    Multiply<1, M>(block, tile, full, kLanes);
    for (int m = 0; m < M; ++m) {
      for (int i = 0; i < lanes; ++i) y[m * block.args.y_stride + i] = full[m * kLanes + i];
    }
  }

  // T tiles x M tokens of outputs in registers, over the pairs of this block.
  template <int T, int M>
  static void Multiply(const Block& block, int tile, float* y, int64_t y_stride) {
    const int64_t tile_bytes = block.args.tile_bytes;
    const char* w =
        reinterpret_cast<const char*>(block.args.w) + tile * tile_bytes + kPairBytes * block.pair;
    const float* scales = block.args.scales;
    const bool resume = block.pair > 0 || (block.args.add && scales == nullptr);
    const Element* x = block.panel;
    // The first pass waits for memory. The others bring in what comes next, each its share of the
    // tiles.
    const bool fetch_next = block.pass > 0 && tile / T % (block.passes - 1) == block.pass - 1;
    const char* fetch = w + (fetch_next ? block.next : kAheadBytes / T);
    Acc acc[T][M];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m)
        acc[t][m] = resume ? V::Load(y + m * y_stride + t * kLanes) : V::Zero();
    }
    for (int p = 0; p < block.pairs; ++p, w += kPairBytes, fetch += kPairBytes, x += 2) {
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) __builtin_prefetch(fetch + t * tile_bytes);
      V::Step(acc, w, tile_bytes, x, 2 * block.pairs);
    }
    if (scales != nullptr) {
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        const Acc scale = V::Load(scales + (tile + t) * kLanes);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          const Acc sum = block.args.add ? V::Load(y + m * y_stride + t * kLanes) : V::Zero();
          acc[t][m] = V::Fold(scale, acc[t][m], sum);
        }
      }
    }
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) V::Store(y + m * y_stride + t * kLanes, acc[t][m]);
    }
  }
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_GEMM_BLOCKED_H_
