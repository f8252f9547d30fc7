// SPDX-License-Identifier: Apache-2.0
// The rows of a task are heads of one query. They see the same positions and run in blocks of
// kDotQueries, which reuses each loaded key and value.
#include "kernels/cpu/attention/find_rows.h"
#include "kernels/cpu/attention/mla_rows.h"
#include "kernels/cpu/attention/row_dots.h"
#include "kernels/cpu/attention/running_softmax.h"

namespace kt::KT_ISA_NAMESPACE {
namespace {

template <typename T>
class Heads {
 public:
  explicit Heads(const MlaRowsArgs& args)
      : args_(args),
        a_(*args.mla),
        heads_(args.head_end - args.head_begin),
        padded_((a_.cache.kv_lora + 15) / 16 * 16) {
    queries_ = args.scratch;
    sums_ = queries_ + int64_t{kMlaTaskHeads} * args.row_elements;
    probabilities_ = sums_ + int64_t{kMlaTaskHeads} * padded_;
    max_ = probabilities_ + kMlaTaskHeads * kKeyTile;
    factor_ = max_ + kMlaTaskHeads;
    total_ = factor_ + kMlaTaskHeads;
  }

  void Run() {
    Begin();
    FindTile(0, tile_);
    for (int first = 0; first < args_.num_positions; first += kKeyTile) {
      const T* next[kKeyTile];
      const int num_next = FindTile(first + kKeyTile, next);
      for (int i = 0; i < num_next; ++i) Prefetch(next[i]);
      const int count = TileSize(first);
      for (int head = 0; head < heads_; head += kDotQueries) TileHeads(head, count);
      for (int i = 0; i < num_next; ++i) tile_[i] = next[i];
    }
    End();
  }

 private:
  void Begin() {
    for (int h = 0; h < heads_; ++h) {
      const T* q = static_cast<const T*>(a_.q) + args_.token * a_.q_stride +
                   (args_.head_begin + h) * a_.q_head_stride;
      WidenRow(q, a_.cache.kv_lora + a_.cache.rope, args_.row_elements,
               queries_ + int64_t{h} * args_.row_elements);
      for (int d = 0; d < padded_; d += kLanes) Store(sums_ + int64_t{h} * padded_ + d, VecF{});
      Store(total_ + h * kSumLanes, VecF{});
      max_[h] = -__builtin_inff();
    }
  }

  void End() {
    for (int h = 0; h < heads_; ++h) {
      T* out = static_cast<T*>(a_.out) + args_.token * a_.out_stride +
               (args_.head_begin + h) * a_.out_head_stride;
      const float* sums = sums_ + int64_t{h} * padded_;
      const VecF inverse = Set(1.0f / ReduceAdd(Load(total_ + h * kSumLanes)));
      ForEachVector(a_.cache.kv_lora, [&](int64_t d, auto load, auto store) {
        store(out + d, load(sums + d) * inverse);
      });
    }
  }

  int TileSize(int first) const {
    const int left = args_.num_positions - first;
    return left < 0 ? 0 : left < kKeyTile ? left : kKeyTile;
  }

  int FindTile(int first, const T** rows) const {
    const int count = TileSize(first);
    FindRows(a_.cache, args_.row_elements, a_.block_table, args_.positions, first, count, rows);
    // What the dots repeat to fill their last block.
    return (count + kDotKeys - 1) / kDotKeys * kDotKeys;
  }

  // Selected rows do not adjoin, which the hardware's own prefetch cannot foresee.
  void Prefetch(const T* row) const {
    for (int d = 0; d < args_.row_elements; d += 64 / static_cast<int>(sizeof(T)))
      __builtin_prefetch(row + d, 0, 2);
  }

  void TileHeads(int head, int count) {
    switch (heads_ - head) {
      case 1:
        return Tile<1>(head, count);
      case 2:
        return Tile<2>(head, count);
      case 3:
        return Tile<3>(head, count);
      default:
        return Tile<kDotQueries>(head, count);
    }
  }

  template <int kHeads>
  void Tile(int head, int count) {
    float* p = probabilities_ + head * kKeyTile;
    RowDots<kHeads>(queries_ + int64_t{head} * args_.row_elements, tile_, count, args_.row_elements,
                    p);
    for (int h = 0; h < kHeads; ++h) {
      factor_[head + h] = SoftmaxTile(p + h * kKeyTile, a_.scale, 0, count, max_ + head + h,
                                      total_ + (head + h) * kSumLanes);
    }
    // Columns between kv_lora and padded_ sum parts of the roped key, which nobody reads.
    AddValues<kHeads>(sums_ + int64_t{head} * padded_, padded_, factor_ + head, p, 0, count,
                      [this](int key) { return tile_[key]; });
  }

  const MlaRowsArgs& args_;
  const MlaArgs& a_;
  const int heads_, padded_;
  float *queries_, *sums_, *probabilities_, *max_, *factor_, *total_;  // layout: mla_rows.h
  const T* tile_[kKeyTile];
};

}  // namespace

void MlaRows(const MlaRowsArgs& args) noexcept {
  args.mla->cache.is_bf16 ? Heads<bf16>(args).Run() : Heads<float>(args).Run();
}

}  // namespace kt::KT_ISA_NAMESPACE
