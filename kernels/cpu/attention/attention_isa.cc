// SPDX-License-Identifier: Apache-2.0
// A row is one query of one head; all rows of a call share the key head. Rows that see the same
// keys of a tile run in blocks, which reuses each loaded key and value; a row never touches a key
// it may not see. Any block gives each of its rows the same operations in the same order.
#include "kernels/cpu/attention/attention_rows.h"
#include "kernels/cpu/attention/running_softmax.h"
#include "kernels/cpu/simd/vec.h"

namespace kt::KT_ISA_NAMESPACE {
namespace {

constexpr int kTileGroups = kKeyTile / kKeyGroup;
constexpr int kGroupVecs = kKeyGroup / kLanes;
// Register plan as in running_softmax.h.
constexpr int kRowBlock = kLanes == 4 ? 2 : 4;
constexpr int kGroupsAtOnce = kLanes == 16 ? 4 : 1;

template <typename T>
class Rows {
 public:
  explicit Rows(const AttentionRowsArgs& a)
      : a_(*a.attention),
        token_begin_(a.token_begin),
        kv_head_(a.kv_head),
        group_(a_.heads / a_.cache.kv_heads),
        rows_((a.token_end - a.token_begin) * group_),
        head_dim_(a_.cache.head_dim),
        padded_((head_dim_ + 15) / 16 * 16) {
    queries_ = a.scratch;
    sums_ = queries_ + int64_t{rows_} * head_dim_;
    probabilities_ = sums_ + int64_t{rows_} * padded_;
    max_ = probabilities_ + int64_t{rows_} * kKeyTile;
    factor_ = max_ + rows_;
    total_ = factor_ + rows_;
  }

  void Run() {
    Begin();
    // Tiles count from position 0 whatever the window, and rows ascend in position.
    for (int first_key = FirstSeen(0) / kKeyTile * kKeyTile; first_key <= Position(rows_ - 1);
         first_key += kKeyTile) {
      FindTile(first_key);
      for (int row = 0; row < rows_;) {
        const Keys keys = Visible(row, first_key);
        int count = 1;
        while (count < kRowBlock && row + count < rows_ && Visible(row + count, first_key) == keys)
          ++count;
        if (keys.begin < keys.end) TileRows(count, row, keys);
        row += count;
      }
    }
    End();
  }

 private:
  int Position(int row) const { return a_.start_position + token_begin_ + row / group_; }
  int FirstSeen(int row) const {
    const int first = Position(row) - a_.window + 1;
    return a_.window == 0 || first < 0 ? 0 : first;
  }
  // The keys [begin, end) of the tile that the row may see.
  struct Keys {
    int begin, end;
    bool operator==(const Keys&) const = default;
  };
  Keys Visible(int row, int first_key) const {
    return {Clamp(FirstSeen(row) - first_key), Clamp(Position(row) - first_key + 1)};
  }
  static int Clamp(int key) { return key < 0 ? 0 : key < kKeyTile ? key : kKeyTile; }
  int64_t Offset(int row, int64_t token_stride) const {
    return (token_begin_ + row / group_) * token_stride +
           (int64_t{kv_head_} * group_ + row % group_) * head_dim_;
  }

  void Begin() {
    for (int row = 0; row < rows_; ++row) {
      const T* q = static_cast<const T*>(a_.q) + Offset(row, a_.q_stride);
      float* widened = queries_ + int64_t{row} * head_dim_;
      ForEachVector(head_dim_,
                    [&](int64_t d, auto load, auto store) { store(widened + d, load(q + d)); });
      for (int d = 0; d < padded_; d += kLanes) Store(sums_ + int64_t{row} * padded_ + d, VecF{});
      // A sink is a key met before all others whose value is zero.
      const float* sink =
          a_.sinks == nullptr ? nullptr : a_.sinks + kv_head_ * group_ + row % group_;
      VecF total = {};
      total[0] = sink == nullptr ? 0.0f : 1.0f;
      Store(total_ + row * kSumLanes, total);
      max_[row] = sink == nullptr ? -__builtin_inff() : *sink;
    }
  }

  void End() {
    for (int row = 0; row < rows_; ++row) {
      T* out = static_cast<T*>(a_.out) + Offset(row, a_.out_stride);
      const float* sums = sums_ + int64_t{row} * padded_;
      VecF inverse = Set(1.0f / ReduceAdd(Load(total_ + row * kSumLanes)));
      ForEachVector(head_dim_, [&](int64_t d, auto load, auto store) {
        store(out + d, load(sums + d) * inverse);
      });
    }
  }

  // Where the tile's groups of keys and values lie, and a hint to fetch the next tile's: groups of
  // one key head do not adjoin, which the hardware's own prefetch cannot foresee. Groups beyond the
  // last query's position or before the first one's window may have no block and are not looked up.
  void FindTile(int first_key) {
    const int last_key = Position(rows_ - 1);
    const int first_seen = FirstSeen(0) / kKeyGroup * kKeyGroup;
    for (int key = first_key > first_seen ? first_key : first_seen;
         key <= last_key && key < first_key + 2 * kKeyTile; key += kKeyGroup) {
      const KvCache& cache = a_.cache;
      const int64_t block = a_.block_table[key / cache.block_tokens];
      const int64_t row =
          (block * cache.kv_heads + kv_head_) * cache.block_tokens + key % cache.block_tokens;
      const T* keys = static_cast<const T*>(cache.k) + row * head_dim_;
      const T* values = static_cast<const T*>(cache.v) + row * padded_;
      if (key < first_key + kKeyTile) {
        keys_[(key - first_key) / kKeyGroup] = keys;
        values_[(key - first_key) / kKeyGroup] = values;
      } else {
        Prefetch(keys, kKeyGroup * head_dim_);
        Prefetch(values, kKeyGroup * padded_);
      }
    }
  }

  static void Prefetch(const T* p, int elements) {
    for (int i = 0; i < elements; i += 64 / static_cast<int>(sizeof(T)))
      __builtin_prefetch(p + i, 0, 2);
  }

  void TileRows(int count, int row, Keys keys) {
    switch (count) {
      case 1:
        return Tile<1>(row, keys);
      case 2:
        return Tile<2>(row, keys);
      case 3:
        return Tile<3>(row, keys);
      default:
        return Tile<kRowBlock>(row, keys);
    }
  }

  template <int kRows>
  void Tile(int row, Keys keys) {
    const int groups = (keys.end + kKeyGroup - 1) / kKeyGroup;
    int g = keys.begin / kKeyGroup;
    for (; g + kGroupsAtOnce <= groups; g += kGroupsAtOnce) Scores<kRows, kGroupsAtOnce>(row, g);
    for (; g < groups; ++g) Scores<kRows, 1>(row, g);
    float* p = probabilities_ + int64_t{row} * kKeyTile;
    for (int r = 0; r < kRows; ++r) {
      factor_[row + r] = SoftmaxTile(p + r * kKeyTile, a_.scale, keys.begin, keys.end,
                                     max_ + row + r, total_ + (row + r) * kSumLanes);
    }
    // Unsigned: a shift and a mask in the inner loop.
    AddValues<kRows>(sums_ + int64_t{row} * padded_, padded_, factor_ + row, p, keys.begin,
                     keys.end, [this](unsigned key) {
                       return values_[key / kKeyGroup] + int64_t{key % kKeyGroup} * padded_;
                     });
  }

  // probabilities_[row ..][g * 16 ..] = q k^T, summed over the head dimension from 0 up.
  template <int kRows, int kGroups>
  void Scores(int row, int g) {
    constexpr int kVecs = kGroups * kGroupVecs;
    VecF sum[kRows][kVecs] = {};
    const float* q = queries_ + int64_t{row} * head_dim_;
    for (int d = 0; d < head_dim_; ++d) {
      VecF k[kVecs];
#pragma GCC unroll 16
      for (int c = 0; c < kVecs; ++c)
        k[c] = Load(keys_[g + c / kGroupVecs] + int64_t{d} * kKeyGroup + c % kGroupVecs * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        VecF query = Set(q[r * head_dim_ + d]);
#pragma GCC unroll 16
        for (int c = 0; c < kVecs; ++c) sum[r][c] = Fma(query, k[c], sum[r][c]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kVecs; ++c)
        Store(probabilities_ + (row + r) * kKeyTile + g * kKeyGroup + c * kLanes, sum[r][c]);
    }
  }

  const AttentionArgs& a_;
  const int token_begin_, kv_head_, group_, rows_, head_dim_, padded_;
  float *queries_, *sums_, *probabilities_, *max_, *factor_, *total_;  // layout: attention_rows.h
  const T* keys_[kTileGroups] = {};
  const T* values_[kTileGroups] = {};
};

}  // namespace

void AttentionRows(const AttentionRowsArgs& args) noexcept {
  args.attention->cache.is_bf16 ? Rows<bf16>(args).Run() : Rows<float>(args).Run();
}

}  // namespace kt::KT_ISA_NAMESPACE
