// SPDX-License-Identifier: Apache-2.0
#include "common/weights/tensor_shard.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "common/base/status.h"

namespace kt {
namespace {

using Runs = std::vector<RowRange>;

// Neighbours become one.
void Append(Runs& runs, int begin, int rows) {
  if (rows == 0) return;
  if (!runs.empty() && runs.back().end == begin) {
    runs.back().end += rows;
  } else {
    runs.push_back({begin, begin + rows});
  }
}

StoredMatrix Rows(const StoredMatrix& m, const Runs& runs) {
  if (!m || runs.empty()) return {};
  StoredMatrix out = m;
  out.view = m.view.Rows(runs[0].begin, runs[0].end);
  for (size_t i = 1; i < runs.size(); ++i)
    out.more.push_back(m.view.Rows(runs[i].begin, runs[i].end));
  return out;
}
StoredMatrix Rows(const StoredMatrix& m, RowRange r) {
  return Rows(m, r.size() > 0 ? Runs{r} : Runs{});
}

StoredMatrix Columns(const StoredMatrix& m, RowRange r) {
  if (!m || r.size() == 0) return {};
  StoredMatrix out = m;
  out.view = m.view.Columns(r.begin, r.end);
  return out;
}

StoredVector Values(const StoredVector& v, RowRange r, int64_t each = 1) {
  if (!v) return {};
  StoredVector out = v;
  out.first += r.begin * each * v.step;
  out.n = r.size() * each;
  return out;
}
StoredVector Values(const StoredVector& v, const Runs& runs, int64_t each) {
  StoredVector out = Values(v, runs[0], each);
  for (size_t i = 1; i < runs.size(); ++i) out.more.push_back(Values(v, runs[i], each));
  return out;
}

// Whether `heads` heads go to `size` ranks, several of which may hold the same.
bool Divides(int heads, int size) { return heads % size == 0 || size % heads == 0; }
// Those of `rank`.
RowRange Shared(int heads, int rank, int size) {
  const int each = std::max(1, heads / size), begin = rank * heads / size;
  return {begin, begin + each};
}
RowRange Times(RowRange r, int width) { return {r.begin * width, r.end * width}; }

// Empty: `size` ranks can share the layer.
std::string Problem(const AttentionConfig& a, int size) {
  if (a.kind == AttentionKind::kDeltaNet) {
    if (a.value_heads % size != 0 || !Divides(a.key_heads, size))
      return fmt::format("{} value heads and {} key heads of its linear attention", a.value_heads,
                         a.key_heads);
    return "";
  }
  if (a.num_heads % size != 0) return fmt::format("{} attention heads", a.num_heads);
  if (a.kind == AttentionKind::kGqa && !Divides(a.num_kv_heads, size))
    return fmt::format("{} key-value heads", a.num_kv_heads);
  return "";
}

class Sharder {
 public:
  Sharder(const ModelConfig& whole, int rank, int size) : whole_(whole), rank_(rank), size_(size) {}

  ModelConfig Config() const {
    ModelConfig c = whole_;
    for (AttentionConfig& a : c.attentions) {
      if (a.kind == AttentionKind::kDeltaNet) {
        a.key_heads = Shared(a.key_heads, rank_, size_).size();
        a.value_heads /= size_;
        continue;
      }
      a.num_heads /= size_;
      if (a.kind == AttentionKind::kGqa)
        a.num_kv_heads = Shared(a.num_kv_heads, rank_, size_).size();
    }
    for (LayerConfig& l : c.layers) l.dense_intermediate = Tiles(l.dense_intermediate).size();
    for (MoeConfig& m : c.moes) {
      m.shared_intermediate = Tiles(m.shared_intermediate).size();
      m.intermediate = Tiles(m.intermediate).size();
    }
    return c;
  }

  void Layer(const LayerConfig& layer, StoredLayer& s) const {
    const AttentionConfig& a = whole_.attentions[static_cast<size_t>(layer.attention)];
    if (rank_ != 0) s.o_bias = {};
    switch (a.kind) {
      case AttentionKind::kGqa:
        Gqa(a, s);
        break;
      case AttentionKind::kMla:
        Mla(a, s);
        break;
      case AttentionKind::kDeltaNet:
        DeltaNet(a, s);
        break;
    }
    const int width = layer.moe ? whole_.moes[static_cast<size_t>(*layer.moe)].shared_intermediate
                                : layer.dense_intermediate;
    s.ffn = {Rows(s.ffn.gate, Tiles(width)), Rows(s.ffn.up, Tiles(width)),
             Columns(s.ffn.down, Tiles(width))};
  }

  RowRange Tiles(int rows) const { return TilesOfRank(rows, rank_, size_); }

 private:
  void Gqa(const AttentionConfig& a, StoredLayer& s) const {
    const RowRange heads = Shared(a.num_heads, rank_, size_);
    const RowRange q = Times(heads, a.output_gate ? 2 * a.head_dim : a.head_dim);
    const RowRange kv = Times(Shared(a.num_kv_heads, rank_, size_), a.head_dim);
    s.q = Rows(s.q, q);
    s.k = Rows(s.k, kv);
    s.v = Rows(s.v, kv);
    s.o = Columns(s.o, Times(heads, a.head_dim));
    s.q_bias = Values(s.q_bias, q);
    s.k_bias = Values(s.k_bias, kv);
    s.v_bias = Values(s.v_bias, kv);
    s.sinks = Values(s.sinks, heads);
    if (a.qk_norm == QkNorm::kFullWidth) {
      s.q_norm = Values(s.q_norm, q);
      s.k_norm = Values(s.k_norm, kv);
    }
  }

  void Mla(const AttentionConfig& a, StoredLayer& s) const {
    const RowRange heads = Shared(a.num_heads, rank_, size_);
    const RowRange q = Times(heads, a.nope_dim + a.rope_dim);
    s.q = Rows(s.q, q);
    s.q_b = Rows(s.q_b, q);
    s.kv_b = Rows(s.kv_b, Times(heads, a.nope_dim + a.v_head_dim));
    s.o = Columns(s.o, Times(heads, a.v_head_dim));
  }

  void DeltaNet(const AttentionConfig& a, StoredLayer& s) const {
    const RowRange keys = Shared(a.key_heads, rank_, size_);
    const RowRange values = Shared(a.value_heads, rank_, size_);
    const RowRange key_rows = Times(keys, a.key_dim), value_rows = Times(values, a.value_dim);
    const int all_keys = a.key_heads * a.key_dim;
    Runs channels;  // all q, all k, all v
    Append(channels, key_rows.begin, key_rows.size());
    Append(channels, all_keys + key_rows.begin, key_rows.size());
    Append(channels, 2 * all_keys + value_rows.begin, value_rows.size());
    if (a.grouped_projections) {
      Grouped(a, keys, values, s);
    } else {
      s.delta_qkv = Rows(s.delta_qkv, channels);
      s.delta_z = Rows(s.delta_z, value_rows);
      s.delta_b = Rows(s.delta_b, values);
      s.delta_a = Rows(s.delta_a, values);
    }
    s.conv = Values(s.conv, channels, a.conv_kernel);
    s.a_log = Values(s.a_log, values);
    s.dt_bias = Values(s.dt_bias, values);
    s.o = Columns(s.o, value_rows);
  }

  // Per key head [q | k | v.. | z..] and [b.. | a..]. A rank that shares its key head with others
  // has some of its value heads only.
  void Grouped(const AttentionConfig& a, RowRange keys, RowRange values, StoredLayer& s) const {
    const int group = a.value_heads / a.key_heads;
    const int rows = 2 * a.key_dim + 2 * group * a.value_dim;
    Runs qkvz, ba;
    for (int key = keys.begin; key < keys.end; ++key) {
      const int from = std::max(values.begin, key * group) - key * group;
      const int count = std::min(values.end, (key + 1) * group) - key * group - from;
      Append(qkvz, key * rows, 2 * a.key_dim);
      for (int part = 0; part < 2; ++part) {
        Append(qkvz, key * rows + 2 * a.key_dim + (part * group + from) * a.value_dim,
               count * a.value_dim);
        Append(ba, key * 2 * group + part * group + from, count);
      }
    }
    s.delta_qkv = Rows(s.delta_qkv, qkvz);
    s.delta_b = Rows(s.delta_b, ba);
  }

  const ModelConfig& whole_;
  const int rank_, size_;
};

}  // namespace

RowRange TilesOfRank(int rows, int rank, int size) {
  const int tiles = (rows + kShardTileRows - 1) / kShardTileRows;
  return {std::min(rows, tiles * rank / size * kShardTileRows),
          std::min(rows, tiles * (rank + 1) / size * kShardTileRows)};
}

std::vector<int> ShardDegrees(const ModelConfig& config) {
  std::vector<int> degrees;
  for (int size = 1; size <= kShardsMax; ++size) {
    if (std::all_of(config.attentions.begin(), config.attentions.end(),
                    [&](const AttentionConfig& a) { return Problem(a, size).empty(); }))
      degrees.push_back(size);
  }
  return degrees;
}

absl::Status CheckShards(const ModelConfig& config, int size) {
  for (const AttentionConfig& a : config.attentions) {
    if (std::string problem = Problem(a, size); !problem.empty()) {
      return InvalidArgument("{} ranks cannot share the model's {}; give {}", size, problem,
                             fmt::join(ShardDegrees(config), ", "));
    }
  }
  return absl::OkStatus();
}

TensorShard ShardOf(const ModelConfig& config, const StoredModel& stored, int rank, int size) {
  if (size == 1) return {config, stored};
  const Sharder sharder(config, rank, size);
  TensorShard shard{sharder.Config(), stored};
  const RowRange vocabulary = sharder.Tiles(config.vocab);
  shard.stored.embedding = Rows(stored.embedding, vocabulary);
  shard.stored.lm_head = Rows(stored.lm_head, vocabulary);
  for (size_t l = 0; l < config.layers.size(); ++l)
    sharder.Layer(config.layers[l], shard.stored.layers[l]);
  return shard;
}

GatheredMatrix GatherRows(const StoredMatrix& stored, bool copy) {
  std::vector<MatrixView> runs{stored.view};
  runs.insert(runs.end(), stored.more.begin(), stored.more.end());
  GatheredMatrix out{stored.view};
  MatrixView& v = out.view;
  const int64_t row_bytes = (int64_t{v.k} * CodeBits(v.code) + 7) / 8;
  const int scale_bytes = ScaleBytes(v.scale);
  const int groups = (v.column_origin + v.k - 1) / v.block_columns + 1;
  v.n = 0;
  for (const MatrixView& run : runs) v.n += run.n;
  v.first_column = 0;
  v.code_row_stride = row_bytes;
  v.block_rows = 1;
  v.row_origin = 0;
  v.scale_row_stride = int64_t{groups} * scale_bytes;
  v.scale_column_stride = scale_bytes;
  if (!copy) return out;
  out.codes.reserve(static_cast<size_t>(v.n * row_bytes));
  for (const MatrixView& run : runs) {
    for (int r = 0; r < run.n; ++r) {
      const uint8_t* codes = run.CodeAt(r, 0);
      out.codes.insert(out.codes.end(), codes, codes + row_bytes);
      for (int g = 0; g < groups && scale_bytes > 0; ++g) {
        const uint8_t* scale = run.ScaleAt(r, 0) + g * run.scale_column_stride;
        out.scales.insert(out.scales.end(), scale, scale + scale_bytes);
      }
    }
  }
  v.codes = out.codes.data();
  v.scales = out.scales.data();
  return out;
}

}  // namespace kt
