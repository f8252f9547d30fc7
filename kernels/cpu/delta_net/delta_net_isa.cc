// SPDX-License-Identifier: Apache-2.0
// One key head with its value heads. Tokens go through in tiles: load, convolve, normalise, then
// per value head gates, state and output. A token's operations and their order are the same
// wherever it lies in a tile.
#include "kernels/cpu/delta_net/delta_net_head.h"
#include "kernels/cpu/simd/vec.h"

namespace kt::KT_ISA_NAMESPACE {
namespace {

// Columns of S that a pass over its rows takes together, in vectors: enough sums to cover the
// latency of a fused multiply-add, few enough to stay in L1 from token to token.
constexpr int kColumnVecs = 4;
constexpr int kRowBlock = kLanes == 16 ? 4 : 2;  // of a matrix product, times kColumnVecs registers
constexpr int kPanel = kDeltaNetPanel;

// Elements [i, i + kLanes) of a row of n, zero beyond its end.
template <typename T>
VecF LoadPadded(const T* p, int i, int n) {
  if (i + kLanes <= n) return Load(p + i);
  return i < n ? LoadFirst(p + i, n - i) : VecF{};
}

float SumOfSquares(const float* x, int width) {
  VecF sum = {};
  for (int i = 0; i < width; i += kLanes) {
    const VecF v = Load(x + i);
    sum = Fma(v, v, sum);
  }
  return ReduceAdd(sum);
}

// Element (i, c) lies at i * stride + c / 16 * panel + c % 16: plain rows where panel is 16.
struct Matrix {
  float* data;
  int64_t stride;
  int64_t panel = kPanel;
  float* at(int64_t i, int64_t c) const {
    return data + i * stride + c / kPanel * panel + c % kPanel;
  }
  float* row(int64_t i) const { return data + i * stride; }
};

// c = (add ? c : 0) + a b for kRows rows of plain a and kVecs vectors of columns at `column`.
template <int kRows, int kVecs>
void ProductBlock(Matrix a, Matrix b, Matrix c, int depth, int column, bool add) {
  VecF sum[kRows][kVecs];
  const float* from[kVecs];
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) from[v] = b.at(0, column + v * kLanes);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sum[r][v] = add ? Load(c.at(r, column + v * kLanes)) : VecF{};
  }
  for (int j = 0; j < depth; ++j) {
    VecF x[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) x[v] = Load(from[v] + j * b.stride);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const VecF factor = Set(a.row(r)[j]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[r][v] = Fma(factor, x[v], sum[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) Store(c.at(r, column + v * kLanes), sum[r][v]);
  }
}

template <int kRows>
void ProductRows(Matrix a, Matrix b, Matrix c, int depth, int width, bool add) {
  int column = 0;
  for (; column + kColumnVecs * kLanes <= width; column += kColumnVecs * kLanes)
    ProductBlock<kRows, kColumnVecs>(a, b, c, depth, column, add);
  for (; column < width; column += kLanes) ProductBlock<kRows, 1>(a, b, c, depth, column, add);
}

// c [rows, width] = (add ? c : 0) + a [rows, depth] b [depth, width]; width is whole panels.
void Product(Matrix a, Matrix b, Matrix c, int rows, int depth, int width, bool add) {
  int i = 0;
  for (; i + kRowBlock <= rows; i += kRowBlock) {
    ProductRows<kRowBlock>({a.row(i), a.stride}, b, {c.row(i), c.stride, c.panel}, depth, width,
                           add);
  }
  for (; i < rows; ++i)
    ProductRows<1>({a.row(i), a.stride}, b, {c.row(i), c.stride, c.panel}, depth, width, add);
}

void ScaleRow(float* row, int width, float factor) {
  for (int c = 0; c < width; c += kLanes) Store(row + c, Load(row + c) * factor);
}

template <typename T>
class Head {
 public:
  explicit Head(const DeltaNetHeadArgs& h)
      : a_(*h.args),
        layout_(*h.layout),
        key_head_(h.key_head),
        chunked_(h.chunked),
        key_dim_(a_.shape.key_dim),
        value_dim_(a_.shape.value_dim),
        history_rows_(a_.shape.conv_kernel - 1),
        key_width_(layout_.key_width),
        value_width_(layout_.value_width),
        channels_(layout_.channels),
        rows_(h.scratch),
        conv_(h.scratch + layout_.conv),
        sums_{h.scratch + layout_.sums, layout_.value_width},
        log_decay_(h.scratch + layout_.gates),
        decay_(log_decay_ + kDeltaNetTile),
        beta_(decay_ + kDeltaNetTile),
        keys_{h.scratch + layout_.keys, kDeltaNetTile},
        key_key_{h.scratch + layout_.key_key, kDeltaNetTile},
        query_key_{h.scratch + layout_.query_key, kDeltaNetTile},
        corrections_{h.scratch + layout_.corrections, kDeltaNetTile},
        scores_{h.scratch + layout_.scores, kDeltaNetTile} {}

  void Run() {
    float* target = static_cast<float*>(a_.state_target) + key_head_ * layout_.state;
    const float* source = target;
    if (a_.state_source != nullptr) {
      source = static_cast<const float*>(a_.state_source) + key_head_ * layout_.state;
    } else {
      for (int64_t i = 0; i < layout_.state; i += kLanes) Store(target + i, VecF{});
    }
    TransposeConvWeights();
    for (int begin = 0; begin < a_.tokens; begin += kDeltaNetTile) {
      const int left = a_.tokens - begin;
      const int tokens = left < kDeltaNetTile ? left : kDeltaNetTile;
      LoadTile(begin, tokens, source + layout_.history, target + layout_.history);
      Convolve(tokens);
      Normalise(tokens);
      if (chunked_) KeyProducts(tokens);
      for (int i = 0; i < layout_.group; ++i) {
        const int64_t s = int64_t{i} * key_dim_ * value_width_;
        Gates(i, begin, tokens);
        chunked_ ? Chunk(i, tokens, source + s, target + s)
                 : Recurrence(i, tokens, source + s, target + s);
        Output(i, begin, tokens);
      }
      source = target;
    }
  }

 private:
  float* Query(int t) const { return rows_ + int64_t{history_rows_ + t} * channels_; }
  float* Key(int t) const { return Query(t) + key_width_; }
  float* Value(int i, int t) const { return Query(t) + 2 * key_width_ + i * value_width_; }
  // S of a value head.
  Matrix State(float* data) const { return {data, kPanel, int64_t{key_dim_} * kPanel}; }
  const T* At(const DeltaNetRows& rows, int token, int i) const {
    return static_cast<const T*>(rows.data) + token * rows.token_stride +
           key_head_ * rows.key_head_stride + i * rows.value_head_stride;
  }

  // conv_[j] = weights of the input conv_kernel - 1 - j tokens ago.
  void TransposeConvWeights() {
    const int kernel = a_.shape.conv_kernel, keys = a_.shape.key_heads * key_dim_;
    for (int64_t i = 0; i < int64_t{kernel} * channels_; i += kLanes) Store(conv_ + i, VecF{});
    auto transpose = [&](int offset, int channel, int n) {
      const float* weight = a_.conv_weight + int64_t{channel} * kernel;
      for (int d = 0; d < n; ++d) {
        for (int j = 0; j < kernel; ++j)
          conv_[int64_t{j} * channels_ + offset + d] = weight[int64_t{d} * kernel + j];
      }
    };
    transpose(0, key_head_ * key_dim_, key_dim_);
    transpose(key_width_, keys + key_head_ * key_dim_, key_dim_);
    for (int i = 0; i < layout_.group; ++i) {
      transpose(2 * key_width_ + i * value_width_,
                2 * keys + (key_head_ * layout_.group + i) * value_dim_, value_dim_);
    }
  }

  // Rows of the convolution's inputs, behind those of earlier tokens; the last ones are the new
  // history.
  void LoadTile(int begin, int tokens, const float* history, float* new_history) {
    const int64_t history_size = int64_t{history_rows_} * channels_;
    for (int64_t i = 0; i < history_size; i += kLanes) Store(rows_ + i, Load(history + i));
    for (int t = 0; t < tokens; ++t) {
      const T* q = At(a_.projections.q, begin + t, 0);
      const T* k = At(a_.projections.k, begin + t, 0);
      for (int d = 0; d < key_width_; d += kLanes) {
        Store(Query(t) + d, LoadPadded(q, d, key_dim_));
        Store(Key(t) + d, LoadPadded(k, d, key_dim_));
      }
      for (int i = 0; i < layout_.group; ++i) {
        const T* v = At(a_.projections.v, begin + t, i);
        for (int d = 0; d < value_width_; d += kLanes)
          Store(Value(i, t) + d, LoadPadded(v, d, value_dim_));
      }
    }
    const float* last = rows_ + int64_t{tokens} * channels_;
    for (int64_t i = 0; i < history_size; i += kLanes) Store(new_history + i, Load(last + i));
  }

  // In place: from the last token to the first, whose inputs are older rows.
  void Convolve(int tokens) {
    for (int t = tokens - 1; t >= 0; --t) {
      const float* inputs = rows_ + int64_t{t} * channels_;
      float* out = Query(t);
      for (int c = 0; c < channels_; c += kLanes) {
        VecF sum = Load(conv_ + c) * Load(inputs + c);
        for (int64_t j = 1; j <= history_rows_; ++j)
          sum = Fma(Load(conv_ + j * channels_ + c), Load(inputs + j * channels_ + c), sum);
        Store(out + c, sum / (Exp(-sum) + 1.0f));
      }
    }
  }

  void Normalise(int tokens) {
    const float query_scale = 1.0f / __builtin_sqrtf(static_cast<float>(key_dim_));
    auto inverse_norm = [&](const float* x) {
      return 1.0f / __builtin_sqrtf(SumOfSquares(x, key_width_) + 1e-6f);
    };
    for (int t = 0; t < tokens; ++t) {
      ScaleRow(Query(t), key_width_, inverse_norm(Query(t)) * query_scale);
      ScaleRow(Key(t), key_width_, inverse_norm(Key(t)));
    }
  }

  void Gates(int i, int begin, int tokens) {
    const int head = key_head_ * layout_.group + i;
    const float rate = -__builtin_expf(a_.a_log[head]);
    for (int t = 0; t < tokens; ++t) {
      const float x = LoadFirst(At(a_.projections.a, begin + t, i), 1)[0] + a_.dt_bias[head];
      const float b = LoadFirst(At(a_.projections.b, begin + t, i), 1)[0];
      log_decay_[t] = rate * (x > 20.0f ? x : __builtin_log1pf(__builtin_expf(x)));
      decay_[t] = __builtin_expf(log_decay_[t]);
      beta_[t] = 1.0f / (1.0f + __builtin_expf(-b));
    }
  }

  // sums_[t] = S^T q after token t, the first token reads S from `source`. The columns of S do not
  // depend on one another: a block of them sees all tokens before the next.
  void Recurrence(int i, int tokens, const float* source, float* target) {
    int column = 0;
    for (; column + kColumnVecs * kLanes <= value_width_; column += kColumnVecs * kLanes)
      Columns<kColumnVecs>(i, tokens, source, target, column);
    for (; column < value_width_; column += kLanes) Columns<1>(i, tokens, source, target, column);
  }

  template <int kVecs>
  void Columns(int i, int tokens, const float* source, float* target, int column) {
    const int key_dim = key_dim_;
    const float* from[kVecs];
    float* to[kVecs];
    for (int c = 0; c < kVecs; ++c) {
      to[c] = State(target).at(0, column + c * kLanes);
      from[c] = source + (to[c] - target);
    }
    for (int t = 0; t < tokens; ++t) {
      const float *q = Query(t), *k = Key(t), *v = Value(i, t) + column;
      const VecF decay = Set(decay_[t]), beta = Set(beta_[t]);
      VecF u[kVecs] = {}, sum[kVecs] = {};
      for (int d = 0; d < key_dim; ++d) {
#pragma GCC unroll 4
        for (int c = 0; c < kVecs; ++c) u[c] = Fma(Set(k[d]), Load(from[c] + d * kPanel), u[c]);
      }
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) u[c] = Fma(-decay, u[c], Load(v + c * kLanes)) * beta;
      for (int d = 0; d < key_dim; ++d) {
#pragma GCC unroll 4
        for (int c = 0; c < kVecs; ++c) {
          const VecF x = Fma(Set(k[d]), u[c], Load(from[c] + d * kPanel) * decay);
          Store(to[c] + d * kPanel, x);
          sum[c] = Fma(Set(q[d]), x, sum[c]);
        }
      }
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) {
        Store(sums_.row(t) + column + c * kLanes, sum[c]);
        from[c] = to[c];
      }
    }
  }

  void KeyProducts(int tokens) {
    for (int d = 0; d < key_dim_; ++d) {
      for (int t = 0; t < tokens; ++t) keys_.row(d)[t] = Key(t)[d];
      for (int t = tokens; t < kDeltaNetTile; ++t) keys_.row(d)[t] = 0;
    }
    Product({Key(0), channels_}, keys_, key_key_, tokens, key_dim_, kDeltaNetTile, false);
    Product({Query(0), channels_}, keys_, query_key_, tokens, key_dim_, kDeltaNetTile, false);
  }

  // With G the running sum of the log decays and S the state before the chunk:
  //   u_i   = beta_i (v_i - e^G_i S^T k_i - sum over j < i of e^(G_i - G_j) (k_i . k_j) u_j)
  //   sum_i = e^G_i S^T q_i + sum over j <= i of e^(G_i - G_j) (q_i . k_j) u_j
  //   S     = e^G_last S + sum over i of k_i (e^(G_last - G_i) u_i)^T
  // No exponent is positive.
  void Chunk(int i, int tokens, const float* source, float* target) {
    for (int t = 1; t < tokens; ++t) log_decay_[t] += log_decay_[t - 1];
    const float last = log_decay_[tokens - 1];
    ChunkWeights(tokens);
    const Matrix state = State(const_cast<float*>(source));
    const Matrix u{Value(i, 0), channels_};

    Product({Key(0), channels_}, state, sums_, tokens, key_dim_, value_width_, false);
    for (int t = 0; t < tokens; ++t) {
      const VecF decay = Set(-__builtin_expf(log_decay_[t]));
      for (int c = 0; c < value_width_; c += kLanes)
        Store(u.row(t) + c, Fma(decay, Load(sums_.row(t) + c), Load(u.row(t) + c)) * beta_[t]);
      Product({corrections_.row(t), 0}, u, {u.row(t), 0}, 1, t, value_width_, true);
    }

    Product({Query(0), channels_}, state, sums_, tokens, key_dim_, value_width_, false);
    for (int t = 0; t < tokens; ++t)
      ScaleRow(sums_.row(t), value_width_, __builtin_expf(log_decay_[t]));
    for (int t = 0; t < tokens; t += kRowBlock) {
      const int rows = tokens - t < kRowBlock ? tokens - t : kRowBlock;
      Product({scores_.row(t), scores_.stride}, u, {sums_.row(t), sums_.stride}, rows, t + rows,
              value_width_, true);
    }

    for (int t = 0; t < tokens; ++t)
      ScaleRow(u.row(t), value_width_, __builtin_expf(last - log_decay_[t]));
    const VecF decay = Set(__builtin_expf(last));
    for (int64_t j = 0; j < int64_t{key_dim_} * value_width_; j += kLanes)
      Store(target + j, Load(source + j) * decay);
    Product(keys_, u, State(target), key_dim_, tokens, value_width_, true);
  }

  // corrections_[i][j] = -beta_i (k_i . k_j) e^(G_i - G_j) for j < i, scores_[i][j] = (q_i . k_j)
  // e^(G_i - G_j) for j <= i, zero elsewhere.
  void ChunkWeights(int tokens) {
    VecI lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = i;
    for (int t = tokens; t < kDeltaNetTile; ++t) log_decay_[t] = 0;
    for (int i = 0; i < tokens; ++i) {
      for (int c = 0; c < kDeltaNetTile; c += kLanes) {
        const VecI j = lane + c;
        const VecF below = log_decay_[i] - Load(log_decay_ + c);
        const VecF decay = Exp(j <= i ? below : VecF{});
        const VecF correction = decay * Load(key_key_.row(i) + c) * -beta_[i];
        const VecF score = decay * Load(query_key_.row(i) + c);
        Store(corrections_.row(i) + c, j < i ? correction : VecF{});
        Store(scores_.row(i) + c, j <= i ? score : VecF{});
      }
    }
  }

  void Output(int i, int begin, int tokens) {
    const int head = key_head_ * layout_.group + i;
    for (int t = 0; t < tokens; ++t) {
      const float* sum = sums_.row(t);
      const T* z = At(a_.projections.z, begin + t, i);
      T* out = static_cast<T*>(a_.out) + (begin + t) * a_.out_stride + int64_t{head} * value_dim_;
      const float mean = SumOfSquares(sum, value_width_) / static_cast<float>(value_dim_);
      const VecF scale = Set(1.0f / __builtin_sqrtf(mean + a_.norm_eps));
      ForEachVector(value_dim_, [&](int64_t d, auto load, auto store) {
        const VecF gate = load(z + d);
        store(out + d,
              load(sum + d) * scale * load(a_.norm_weight + d) * (gate / (Exp(-gate) + 1.0f)));
      });
    }
  }

  const DeltaNetArgs& a_;
  const DeltaNetLayout& layout_;
  const int key_head_;
  const bool chunked_;
  const int key_dim_, value_dim_, history_rows_, key_width_, value_width_, channels_;
  float *const rows_, *const conv_;  // scratch: delta_net_head.h
  const Matrix sums_;
  float *const log_decay_, *const decay_, *const beta_;
  const Matrix keys_, key_key_, query_key_, corrections_, scores_;
};

}  // namespace

void DeltaNetHead(const DeltaNetHeadArgs& args) noexcept {
  args.args->is_bf16 ? Head<bf16>(args).Run() : Head<float>(args).Run();
}

}  // namespace kt::KT_ISA_NAMESPACE
