// SPDX-License-Identifier: Apache-2.0
// The loops around the vector code of an instruction set, included by its files only. V, a struct
// of that file's anonymous namespace, makes every instantiation local to the file, so no code
// compiled for one instruction set is linked into another.
//
// Few tokens: weights are decoded in registers and used at once. They come
// from memory in order, several tiles side by side, which is as fast as plain reading; for one
// token, asking for them ahead in software made it slower.
// More tokens: a block of columns of a few tiles is decoded once to a panel in cache, in the very
// form in which registers would have held it, and multiplied by all tokens. bf16 weights that are
// multiplied as they are need no panel. While one block is multiplied, the next is on its way from
// memory.
//
// x is copied to a panel on the stack in the form V multiplies by; it serves all tiles of a group
// from L1. Between stretches of k the sums rest in y as fp32, which changes no bits.
//
// V provides
//   kParts               registers per 16 rows
//   kStepColumns         columns that one multiplication takes
//   X                    what the x panel holds for a step
//   Acc, Weight          a register of sums, of weights of a step
//   kTokensMax, ReuseTiles(tokens), StreamTiles(tokens)
//                        the register block, when weights come from cache and when from memory
//   kPanelTiles          of a panel
//   Fill(x, is_bf16, at, count, factor, out)
//                        writes count elements of an x row from element `at` on, times `factor`,
//                        zeros behind them up to a multiple of 8 columns
//   Zero(), Load(y), Store(y, acc), Scale(kind, lanes, scales, group, row), MultiplyAdd(a, b, c)
//   Add(acc, weight, x)  acc + weight * x for the columns of a step, in order
//   Unit<code>(bytes)    a part of a unit; kSteps, Step<s>(); kXFactor, kSumFactor: powers of two
//                        by which x is multiplied, and then the sum (Times<Unit>(sum)), to make up
//                        for the form of the weights
//   LoadWeight, StoreWeight(bytes)
//                        of the panel
//   Number<Unit>(weight) the weights themselves, whatever their form
#ifndef KT_KERNELS_CPU_GEMM_GEMM_BLOCKED_H_
#define KT_KERNELS_CPU_GEMM_GEMM_BLOCKED_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cpu/gemm/gemm_args.h"

namespace kt {

template <typename V, PackedCode kCode>
class BlockedProduct {
 public:
  static void Run(const ProductArgs& args, int tile_begin, int tile_end) {
    const int token_blocks = (args.tokens + V::kTokensMax - 1) / V::kTokensMax;
    if (token_blocks == 0) return;
    const int tokens_per_block = (args.tokens + token_blocks - 1) / token_blocks;
    const bool use_panel = token_blocks > (kScaled ? 1 : kBf16Blocks) && kDecodes;
    const int group_tiles = use_panel ? V::kPanelTiles : kGroupTiles;
    const int columns_max = use_panel ? kScaledColumns
                                      : kXPanelBytes / sizeof(X) / tokens_per_block *
                                            V::kStepColumns / kUnitColumnsMax * kUnitColumnsMax;
    alignas(64) X x_panel[kXPanelBytes / sizeof(X)];
    alignas(64) char w_panel[kWPanelBytes];
    for (int group = tile_begin; group < tile_end; group += group_tiles) {
      const int group_end = group + group_tiles < tile_end ? group + group_tiles : tile_end;
      Stretch s{args, w_panel, x_panel, group};
      s.passes = token_blocks;
      for (Columns at(args); at.begin < args.k; at = at.After(s.end)) {
        s.first = at;
        s.end = at.Reach(columns_max);
        s.steps = (s.end - at.begin + kUnitColumnsMax - 1) / kUnitColumnsMax * kUnitColumnsMax /
                  V::kStepColumns;
        if (use_panel) Decode(s, group, group_end);
        for (s.pass = 0; s.pass < token_blocks; ++s.pass) {
          s.token = static_cast<int>(int64_t{args.tokens} * s.pass / token_blocks);
          const int tokens =
              static_cast<int>(int64_t{args.tokens} * (s.pass + 1) / token_blocks) - s.token;
          for (int m = 0; m < tokens; ++m) {
            V::Fill(args.x, args.x_is_bf16, (s.token + m) * args.x_stride + at.begin,
                    s.end - at.begin, Unit::kXFactor, x_panel + m * s.steps);
          }
          if (use_panel) {
            RunTiles<PanelSource, V::kTokensMax>(s, tokens, group, group_end);
          } else {
            RunTiles<PackedSource, V::kTokensMax>(s, tokens, group, group_end);
          }
        }
      }
    }
  }

  // See DecodeFn.
  static void DecodeNumbers(const uint8_t* codes, int units, uint8_t* out, int64_t step_bytes) {
    for (int u = 0; u < units; ++u, codes += kUnitBytes) {
      for (int part = 0; part < V::kParts; ++part) {
        const Unit unit(reinterpret_cast<const char*>(codes) + part * kPartBytes);
        ForSteps<Unit>([&]<int s>() {
          V::StoreWeight(reinterpret_cast<char*>(out) + s * step_bytes + part * kPartBytes,
                         V::template Number<Unit>(unit.template Step<s>()));
        });
      }
      out += Unit::kSteps * step_bytes;
    }
  }

 private:
  using X = typename V::X;
  using Acc = typename V::Acc;
  using Unit = typename V::template Unit<kCode>;
  static constexpr bool kScaled = kCode != PackedCode::kBf16;
  static constexpr bool kDecodes = kScaled || Unit::kSteps > 1;  // weights change their form
  static constexpr int kUnitColumns = Unit::kSteps * V::kStepColumns;
  static constexpr int kUnitColumnsMax = 8;
  static constexpr int kGroupTiles = 8;
  static constexpr int kPartBytes = kUnitBytes / V::kParts, kPartRows = kTileRows / V::kParts;
  static constexpr int kXPanelBytes = 16384;
  static constexpr int kBf16Blocks = 4;  // widening bf16 for fewer blocks of tokens is cheaper
  static constexpr int64_t kAheadBytes = 4096;   // of all tiles together
  static constexpr int kStepBytes = kUnitBytes;  // of the panel: as if it were a unit
  static constexpr int kPanelTileBytes = kScaledColumns / V::kStepColumns * kStepBytes;
  static constexpr int kWPanelBytes = kDecodes ? V::kPanelTiles * kPanelTileBytes : 1;
  static_assert(kXPanelBytes / sizeof(X) / V::kTokensMax * V::kStepColumns >= kScaledColumns);

  // A position in k where a block of columns begins, and the scale group it lies in.
  struct Columns {
    int begin = 0;
    int group_end = 0;
    int group = 0;
    int k, group_columns;

    explicit Columns(const ProductArgs& a)
        : group_end(kScaled ? a.group - a.origin % a.group : a.k),
          group(kScaled ? a.origin / a.group : 0),
          k(a.k),
          group_columns(a.group) {
      if (group_end > k) group_end = k;
    }
    int BlockEnd() const {
      return group_end - begin > kScaledColumns ? begin + kScaledColumns : group_end;
    }
    void Next() {
      begin = BlockEnd();
      if (begin < group_end) return;
      ++group;
      group_end = k - begin > group_columns ? begin + group_columns : k;
    }
    // The end of as many whole blocks as lie within `columns` columns, at least one; without
    // scales, of all of them.
    int Reach(int columns) const {
      if (!kScaled) return k - begin > columns ? begin + columns : k;
      Columns c = *this;
      do c.Next();
      while (c.begin < k && c.BlockEnd() - begin <= columns);
      return c.begin;
    }
    Columns After(int end) const {
      Columns c = *this;
      if (!kScaled) {
        c.begin = end;
      } else {
        while (c.begin < end) c.Next();
      }
      return c;
    }
  };

  // What one pass over the tiles of a group multiplies: columns [first.begin, end) of some tokens.
  struct Stretch {
    const ProductArgs& args;
    char* w_panel;
    const X* x_panel;
    int group_tile;  // first tile in w_panel
    Columns first{args};
    int end = 0;
    int steps = 0;  // from token to token in x_panel
    int token = 0;
    int pass = 0, passes = 1;  // of token blocks over the same weights
  };

  static const char* PackedAt(const ProductArgs& args, int tile, int column) {
    return reinterpret_cast<const char*>(args.w) + tile * args.tile_bytes +
           column / kUnitColumns * kUnitBytes;
  }

  // Where Multiply takes weights from, a unit at a time, and what it asks memory for meanwhile.
  struct PackedSource {
    using Part = Unit;
    static constexpr int kColumns = kUnitColumns, kAheadStep = kUnitBytes;
    static const char* At(const Stretch& s, int tile) {
      return PackedAt(s.args, tile, s.first.begin);
    }
    static int64_t TileBytes(const Stretch& s) { return s.args.tile_bytes; }
    // A first pass with several tokens has work to do on each line, so that the processor's own
    // looking ahead falls short. Later passes over bf16 weights bring in what comes after them,
    // each its share of the tiles.
    static const char* Ahead(const Stretch& s, int tile, int tiles, int tokens) {
      const char* here = At(s, tile);
      if (s.pass == 0) return tokens > 1 ? here + kAheadBytes / tiles : nullptr;
      if (tile / tiles % (s.passes - 1) != s.pass - 1) return nullptr;
      return s.end < s.args.k ? PackedAt(s.args, tile, s.end)
                              : PackedAt(s.args, tile + kGroupTiles, 0);
    }
  };
  struct PanelSource {  // its units are steps: unrolled further, the compiler spills sums
    struct Part {
      static constexpr int kSteps = 1;
      explicit Part(const char* p) : weight(V::LoadWeight(p)) {}
      template <int>
      typename V::Weight Step() const {
        return weight;
      }
      typename V::Weight weight;
    };
    static constexpr int kColumns = V::kStepColumns, kAheadStep = kUnitBytes / Unit::kSteps;
    static const char* At(const Stretch& s, int tile) {
      return s.w_panel + (tile - s.group_tile) * kPanelTileBytes;
    }
    static int64_t TileBytes(const Stretch&) { return kPanelTileBytes; }
    // The codes that will be decoded next.
    static const char* Ahead(const Stretch& s, int tile, int, int) {
      if (s.pass > 0) return nullptr;
      return s.end < s.args.k ? PackedAt(s.args, tile, s.end)
                              : PackedAt(s.args, tile + V::kPanelTiles, 0);
    }
  };

  static void Decode(const Stretch& s, int tile, int tile_end) {
    const int units = (s.end - s.first.begin + kUnitColumns - 1) / kUnitColumns;
    for (; tile < tile_end; ++tile) {
      const char* w = PackedAt(s.args, tile, s.first.begin);
      char* out = s.w_panel + (tile - s.group_tile) * kPanelTileBytes;
      for (int u = 0; u < units; ++u, w += kUnitBytes) {
        for (int part = 0; part < V::kParts; ++part) {
          const Unit unit(w + part * kPartBytes);
          ForSteps<Unit>([&]<int s>() {
            V::StoreWeight(out + s * kStepBytes + part * kPartBytes, unit.template Step<s>());
          });
        }
        out += Unit::kSteps * kStepBytes;
      }
    }
  }

  template <typename Part, typename F>
  [[gnu::always_inline]] static void ForSteps(F f) {
    [&]<int... s>(std::integer_sequence<int, s...>) { (f.template operator()<s>(), ...); }
    (std::make_integer_sequence<int, Part::kSteps>());
  }

  // Finds the instantiation for the number of tokens in this pass.
  template <typename Source, int M>
  static void RunTiles(const Stretch& s, int tokens, int tile, int tile_end) {
    if constexpr (M > 1) {
      if (tokens < M) return RunTiles<Source, M - 1>(s, tokens, tile, tile_end);
    }
    const int full_end = tile_end * kTileRows <= s.args.n ? tile_end : tile_end - 1;
    if (s.passes > 1) {
      tile = RunFull<Source, V::ReuseTiles(M), M>(s, tile, full_end);
    } else {
      tile = RunFull<Source, V::StreamTiles(M), M>(s, tile, full_end);
    }
    tile = RunFull<Source, 1, M>(s, tile, full_end);
    if (tile < tile_end) RunRagged<Source, M>(s, tile);
  }

  template <typename Source, int T, int M>
  static int RunFull(const Stretch& s, int tile, int tile_end) {
    for (; tile + T <= tile_end; tile += T) {
      Multiply<Source, T, M>(s, tile, s.args.y + s.token * s.args.y_stride + tile * kTileRows,
                             s.args.y_stride);
    }
    return tile;
  }

  // The last tile where n is no multiple of 16: through a full-width copy of its outputs.
  template <typename Source, int M>
  static void RunRagged(const Stretch& s, int tile) {
    float full[M * kTileRows] = {};
    float* y = s.args.y + s.token * s.args.y_stride + tile * kTileRows;
    const int rows = s.args.n - tile * kTileRows;
    if (s.first.begin > 0 || s.args.add) {
      for (int m = 0; m < M; ++m) {
        for (int i = 0; i < rows; ++i) full[m * kTileRows + i] = y[m * s.args.y_stride + i];
      }
    }
    Multiply<Source, 1, M>(s, tile, full, kTileRows);
    for (int m = 0; m < M; ++m) {
      for (int i = 0; i < rows; ++i) y[m * s.args.y_stride + i] = full[m * kTileRows + i];
    }
  }

  template <int T, int M>
  using Sums = Acc[T][V::kParts][M];

  // T tiles x M tokens of outputs over the columns of the stretch.
  template <typename Source, int T, int M>
  static void Multiply(const Stretch& s, int tile, float* y, int64_t y_stride) {
    const char* w = Source::At(s, tile);
    const int64_t tile_bytes = Source::TileBytes(s);
    const X* x = s.x_panel;
    Sums<T, M> total;
    const bool resume = s.first.begin > 0 || s.args.add;
    ForAll<T, M>([&](int t, int p, int m) {
      total[t][p][m] =
          resume ? V::Load(y + m * y_stride + t * kTileRows + p * kPartRows) : V::Zero();
    });
    const char* ahead = Source::Ahead(s, tile, T, M);
    if constexpr (!kScaled) {
      const int units = (s.end - s.first.begin + Source::kColumns - 1) / Source::kColumns;
      AddUnits<Source, T, M>(total, w, tile_bytes, x, s.steps, units, ahead, s.args.tile_bytes);
    } else {
      for (Columns c = s.first; c.begin < s.end; c.Next()) {
        const int units = (c.BlockEnd() - c.begin + Source::kColumns - 1) / Source::kColumns;
        Sums<T, M> sum;
        ForAll<T, M>([&](int t, int p, int m) { sum[t][p][m] = V::Zero(); });
        AddUnits<Source, T, M>(sum, w, tile_bytes, x, s.steps, units, ahead, s.args.tile_bytes);
        w += units * kUnitBytes;
        x += units * Source::Part::kSteps;
        if (ahead != nullptr) ahead += units * Source::kAheadStep;
        Fold<T, M>(s.args, tile, c.group, sum, total);
      }
    }
    ForAll<T, M>([&](int t, int p, int m) {
      V::Store(y + m * y_stride + t * kTileRows + p * kPartRows, total[t][p][m]);
    });
  }

  template <int T, int M, typename F>
  [[gnu::always_inline]] static void ForAll(F f) {
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
      for (int p = 0; p < V::kParts; ++p) {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) f(t, p, m);
      }
    }
  }

  template <typename Source, int T, int M>
  [[gnu::always_inline]] static void AddUnits(Sums<T, M>& sum, const char* w, int64_t tile_bytes,
                                              const X* x, int x_stride, int units,
                                              const char* ahead, int64_t ahead_stride) {
    using Part = typename Source::Part;
    for (int u = 0; u < units; ++u, w += kUnitBytes, x += Part::kSteps) {
      if (ahead != nullptr) {
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t)
          __builtin_prefetch(ahead + u * Source::kAheadStep + t * ahead_stride);
      }
      if constexpr (M == 1) {
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
          for (int p = 0; p < V::kParts; ++p) {
            const Part part(w + t * tile_bytes + p * kPartBytes);
            ForSteps<Part>([&]<int step>() {
              sum[t][p][0] =
                  V::Add(sum[t][p][0], part.template Step<step>(), V::Broadcast(x + step));
            });
          }
        }
      } else {
        ForSteps<Part>([&]<int step>() {
          typename V::Weight weight[T][V::kParts];
#pragma GCC unroll 16
          for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
            for (int p = 0; p < V::kParts; ++p)
              weight[t][p] = Part(w + t * tile_bytes + p * kPartBytes).template Step<step>();
          }
#pragma GCC unroll 16
          for (int m = 0; m < M; ++m) {
            const auto value = V::Broadcast(x + m * x_stride + step);
#pragma GCC unroll 16
            for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
              for (int p = 0; p < V::kParts; ++p)
                sum[t][p][m] = V::Add(sum[t][p][m], weight[t][p], value);
            }
          }
        });
      }
    }
  }

  // total = scale * sum + total
  template <int T, int M>
  [[gnu::always_inline]] static void Fold(const ProductArgs& args, int tile, int group,
                                          const Sums<T, M>& sum, Sums<T, M>& total) {
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
      const uint8_t* scales = args.scales + (tile + t) * args.tile_bytes;
#pragma GCC unroll 16
      for (int p = 0; p < V::kParts; ++p) {
        const Acc scale = V::Scale(args.scale, args.lanes, scales, group, p * kPartRows);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m)
          total[t][p][m] =
              V::MultiplyAdd(scale, V::template Times<Unit>(sum[t][p][m]), total[t][p][m]);
      }
    }
  }
};

}  // namespace kt

// The functions of gemm_isa.h for a V, in the namespace of its instruction set.
#define KT_DEFINE_PRODUCT(code, ...)                                                   \
  void Product##code(const ProductArgs& args, int tile_begin, int tile_end) noexcept { \
    BlockedProduct<__VA_ARGS__, PackedCode::k##code>::Run(args, tile_begin, tile_end); \
  }
#define KT_DEFINE_PRODUCTS(...)           \
  KT_DEFINE_PRODUCT(Bf16, __VA_ARGS__)    \
  KT_DEFINE_PRODUCT(Fp8E4m3, __VA_ARGS__) \
  KT_DEFINE_PRODUCT(Int8, __VA_ARGS__)    \
  KT_DEFINE_PRODUCT(Int4, __VA_ARGS__)    \
  KT_DEFINE_PRODUCT(Fp4E2m1, __VA_ARGS__)

#define KT_DEFINE_DECODER(code, ...)                                                              \
  void Decode##code(const uint8_t* codes, int units, uint8_t* out, int64_t step_bytes) noexcept { \
    BlockedProduct<__VA_ARGS__, PackedCode::k##code>::DecodeNumbers(codes, units, out,            \
                                                                    step_bytes);                  \
  }
#define KT_DEFINE_DECODERS(...)           \
  KT_DEFINE_DECODER(Bf16, __VA_ARGS__)    \
  KT_DEFINE_DECODER(Fp8E4m3, __VA_ARGS__) \
  KT_DEFINE_DECODER(Int8, __VA_ARGS__)    \
  KT_DEFINE_DECODER(Int4, __VA_ARGS__)    \
  KT_DEFINE_DECODER(Fp4E2m1, __VA_ARGS__)

#endif  // KT_KERNELS_CPU_GEMM_GEMM_BLOCKED_H_
