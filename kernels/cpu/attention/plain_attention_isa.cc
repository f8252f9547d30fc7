// SPDX-License-Identifier: Apache-2.0
// The rows of a task are queries of one head. A tile of keys and values is widened once for all of
// them; rows that see the same keys of it run in blocks of kDotQueries.
#include "kernels/cpu/attention/plain_attention_rows.h"
#include "kernels/cpu/attention/row_dots.h"
#include "kernels/cpu/attention/running_softmax.h"

namespace kt::KT_ISA_NAMESPACE {
namespace {

template <typename T>
class Queries {
 public:
  explicit Queries(const PlainAttentionRowsArgs& args)
      : args_(args),
        a_(*args.attention),
        rows_(args.token_end - args.token_begin),
        key_padded_((a_.key_dim + 15) / 16 * 16),
        value_padded_((a_.value_dim + 15) / 16 * 16) {
    keys_ = args.scratch;
    values_ = keys_ + int64_t{kKeyTile} * key_padded_;
    queries_ = values_ + int64_t{kKeyTile} * value_padded_;
    sums_ = queries_ + int64_t{kPlainTaskTokens} * key_padded_;
    probabilities_ = sums_ + int64_t{kPlainTaskTokens} * value_padded_;
    max_ = probabilities_ + kPlainTaskTokens * kKeyTile;
    factor_ = max_ + kPlainTaskTokens;
    total_ = factor_ + kPlainTaskTokens;
    for (int i = 0; i < kKeyTile; ++i) tile_[i] = keys_ + int64_t{i} * key_padded_;
  }

  void Run() {
    Begin();
    for (int first_key = 0; first_key <= Position(rows_ - 1); first_key += kKeyTile) {
      WidenTile(first_key, Visible(rows_ - 1, first_key));
      for (int row = 0; row < rows_;) {
        const int visible = Visible(row, first_key);
        int count = 1;
        while (count < kDotQueries && row + count < rows_ &&
               Visible(row + count, first_key) == visible)
          ++count;
        if (visible > 0) TileRows(count, row, visible);
        row += count;
      }
    }
    End();
  }

 private:
  int Position(int row) const { return a_.keys - a_.tokens + args_.token_begin + row; }
  // How many keys of the tile the row may see.
  int Visible(int row, int first_key) const {
    const int visible = Position(row) - first_key + 1;
    return visible < 0 ? 0 : visible < kKeyTile ? visible : kKeyTile;
  }

  void Begin() {
    for (int row = 0; row < rows_; ++row) {
      const T* q = static_cast<const T*>(a_.q) + (args_.token_begin + row) * a_.q_stride +
                   int64_t{args_.head} * a_.key_dim;
      WidenRow(q, a_.key_dim, key_padded_, queries_ + int64_t{row} * key_padded_);
      for (int d = 0; d < value_padded_; d += kLanes)
        Store(sums_ + int64_t{row} * value_padded_ + d, VecF{});
      Store(total_ + row * kSumLanes, VecF{});
      max_[row] = -__builtin_inff();
    }
  }

  void End() {
    for (int row = 0; row < rows_; ++row) {
      T* out = static_cast<T*>(a_.out) + (args_.token_begin + row) * a_.out_stride +
               int64_t{args_.head} * a_.value_dim;
      const float* sums = sums_ + int64_t{row} * value_padded_;
      const VecF inverse = Set(1.0f / ReduceAdd(Load(total_ + row * kSumLanes)));
      ForEachVector(a_.value_dim, [&](int64_t d, auto load, auto store) {
        store(out + d, load(sums + d) * inverse);
      });
    }
  }

  void WidenTile(int first_key, int count) {
    for (int i = 0; i < count; ++i) {
      const T* k = static_cast<const T*>(a_.k) + (first_key + i) * a_.k_stride +
                   int64_t{args_.head} * a_.key_dim;
      const T* v = static_cast<const T*>(a_.v) + (first_key + i) * a_.v_stride +
                   int64_t{args_.head} * a_.value_dim;
      WidenRow(k, a_.key_dim, key_padded_, keys_ + int64_t{i} * key_padded_);
      WidenRow(v, a_.value_dim, value_padded_, values_ + int64_t{i} * value_padded_);
    }
  }

  void TileRows(int count, int row, int visible) {
    switch (count) {
      case 1:
        return Tile<1>(row, visible);
      case 2:
        return Tile<2>(row, visible);
      case 3:
        return Tile<3>(row, visible);
      default:
        return Tile<kDotQueries>(row, visible);
    }
  }

  template <int kRows>
  void Tile(int row, int visible) {
    float* p = probabilities_ + row * kKeyTile;
    RowDots<kRows>(queries_ + int64_t{row} * key_padded_, tile_, visible, key_padded_, p);
    for (int r = 0; r < kRows; ++r) {
      factor_[row + r] = SoftmaxTile(p + r * kKeyTile, a_.scale, 0, visible, max_ + row + r,
                                     total_ + (row + r) * kSumLanes);
    }
    AddValues<kRows>(sums_ + int64_t{row} * value_padded_, value_padded_, factor_ + row, p, 0,
                     visible, [this](int key) { return values_ + int64_t{key} * value_padded_; });
  }

  const PlainAttentionRowsArgs& args_;
  const PlainAttentionArgs& a_;
  const int rows_, key_padded_, value_padded_;
  // Layout: plain_attention_rows.h.
  float *keys_, *values_, *queries_, *sums_, *probabilities_, *max_, *factor_, *total_;
  const float* tile_[kKeyTile];
};

}  // namespace

void PlainAttentionRows(const PlainAttentionRowsArgs& args) noexcept {
  args.attention->is_bf16 ? Queries<bf16>(args).Run() : Queries<float>(args).Run();
}

}  // namespace kt::KT_ISA_NAMESPACE
