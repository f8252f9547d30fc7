// SPDX-License-Identifier: Apache-2.0
#include "common/weights/tensor_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// All values of a matrix, row by row; the number of rows tells where a row ends.
std::vector<std::vector<float>> RowsOf(const StoredMatrix& m) {
  std::vector<std::vector<float>> rows;
  if (!m) return rows;
  std::vector<MatrixView> runs{m.view};
  runs.insert(runs.end(), m.more.begin(), m.more.end());
  for (const MatrixView& run : runs) {
    for (int r = 0; r < run.n; ++r) {
      std::vector<float>& row = rows.emplace_back();
      for (int c = 0; c < run.k; ++c) row.push_back(run.At(r, c));
    }
  }
  return rows;
}
std::vector<float> ValuesOf(const StoredVector& v) {
  std::vector<float> values(static_cast<size_t>(v ? v.size() : 0));
  if (v) v.Read(values.data());
  return values;
}

struct Model {
  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  StoredModel stored;
};

class TensorShardTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { Load(GetParam()); }
  void Load(const std::string& name) {
    const std::string dir = KT_SOURCE_DIR "/tests/data/models/" + name;
    auto config = LoadModelConfig(dir);
    ASSERT_TRUE(config.ok()) << config.status();
    model_.config = *config;
    auto checkpoint = Checkpoint::Open(dir);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    model_.checkpoint = *std::move(checkpoint);
    auto stored = ResolveWeights(model_.config, *model_.checkpoint);
    ASSERT_TRUE(stored.ok()) << stored.status();
    model_.stored = *std::move(stored);
  }
  void Cut(int size) {
    shards_.clear();
    for (int rank = 0; rank < size; ++rank)
      shards_.push_back(ShardOf(model_.config, model_.stored, rank, size));
  }

  // Every row of the whole, and nothing else, in rank order; heads held by several count once.
  template <typename Get>
  void ExpectRowsJoin(const char* what, Get get) {
    std::vector<std::vector<float>> joined, last;
    for (const TensorShard& shard : shards_) {
      auto rows = RowsOf(get(shard.stored));
      if (rows != last || rows.empty()) joined.insert(joined.end(), rows.begin(), rows.end());
      last = rows;
    }
    EXPECT_EQ(joined, RowsOf(get(model_.stored))) << what;
  }
  template <typename Get>
  void ExpectColumnsJoin(const char* what, Get get) {
    const auto whole = RowsOf(get(model_.stored));
    std::vector<std::vector<float>> joined(whole.size());
    for (const TensorShard& shard : shards_) {
      const auto rows = RowsOf(get(shard.stored));
      for (size_t r = 0; r < rows.size(); ++r)
        joined[r].insert(joined[r].end(), rows[r].begin(), rows[r].end());
    }
    EXPECT_EQ(joined, whole) << what;
  }
  // As a multiset: stacked projections are cut in each of their parts.
  template <typename Get>
  void ExpectSameRows(const char* what, Get get) {
    std::set<std::vector<float>> joined;
    for (const TensorShard& shard : shards_) {
      for (auto& row : RowsOf(get(shard.stored))) joined.insert(row);
    }
    const auto whole = RowsOf(get(model_.stored));
    EXPECT_EQ(joined, std::set<std::vector<float>>(whole.begin(), whole.end())) << what;
  }

  Model model_;
  std::vector<TensorShard> shards_;
};

TEST_P(TensorShardTest, ShardsTogetherAreTheWhole) {
  for (int size : ShardDegrees(model_.config)) {
    SCOPED_TRACE(size);
    Cut(size);
    ExpectRowsJoin("embedding", [](const StoredModel& m) { return m.embedding; });
    ExpectRowsJoin("lm_head", [](const StoredModel& m) { return m.lm_head; });
    for (size_t l = 0; l < model_.config.layers.size(); ++l) {
      SCOPED_TRACE(l);
      auto of = [l](auto member) {
        return [l, member](const StoredModel& m) { return m.layers[l].*member; };
      };
      using L = StoredLayer;
      for (auto member : {&L::q, &L::k, &L::v, &L::q_b, &L::kv_b, &L::delta_z, &L::delta_a})
        ExpectRowsJoin("rows by heads", of(member));
      ExpectSameRows("delta_qkv", of(&L::delta_qkv));
      ExpectSameRows("delta_b", of(&L::delta_b));
      ExpectColumnsJoin("o", of(&L::o));
      ExpectRowsJoin("gate", [l](const StoredModel& m) { return m.layers[l].ffn.gate; });
      ExpectRowsJoin("up", [l](const StoredModel& m) { return m.layers[l].ffn.up; });
      ExpectColumnsJoin("down", [l](const StoredModel& m) { return m.layers[l].ffn.down; });
      const StoredLayer& whole = model_.stored.layers[l];
      for (const TensorShard& shard : shards_) {
        const StoredLayer& part = shard.stored.layers[l];
        for (auto member : {&L::q_a, &L::kv_a, &L::index_q, &L::index_k})
          EXPECT_EQ(RowsOf(part.*member), RowsOf(whole.*member));
        for (auto member : {&L::input_norm, &L::router, &L::q_a_norm, &L::shared_gate})
          EXPECT_EQ(ValuesOf(part.*member), ValuesOf(whole.*member));
      }
      for (auto member : {&L::sinks, &L::q_bias, &L::a_log, &L::dt_bias}) {
        std::vector<float> joined;
        for (const TensorShard& shard : shards_) {
          auto values = ValuesOf(shard.stored.layers[l].*member);
          joined.insert(joined.end(), values.begin(), values.end());
        }
        EXPECT_EQ(joined, ValuesOf(whole.*member));
      }
      EXPECT_EQ(ValuesOf(shards_[0].stored.layers[l].o_bias), ValuesOf(whole.o_bias));
      for (int rank = 1; rank < size; ++rank)
        EXPECT_FALSE(shards_[static_cast<size_t>(rank)].stored.layers[l].o_bias);
    }
  }
}

// The shapes that a loader derives from the shard's own config.
TEST_P(TensorShardTest, ConfigFitsTheViews) {
  for (int size : ShardDegrees(model_.config)) {
    Cut(size);
    for (const TensorShard& shard : shards_) {
      for (size_t l = 0; l < shard.config.layers.size(); ++l) {
        const LayerConfig& layer = shard.config.layers[l];
        const AttentionConfig& a = shard.config.attentions[static_cast<size_t>(layer.attention)];
        const StoredLayer& s = shard.stored.layers[l];
        const int ffn = layer.moe
                            ? shard.config.moes[static_cast<size_t>(*layer.moe)].shared_intermediate
                            : layer.dense_intermediate;
        EXPECT_EQ(s.ffn.gate.view.n, ffn);
        EXPECT_EQ(s.ffn.down.view.k, ffn);
        switch (a.kind) {
          case AttentionKind::kGqa:
            EXPECT_EQ(s.q.view.n, a.num_heads * a.head_dim * (a.output_gate ? 2 : 1));
            EXPECT_EQ(s.k.view.n, a.num_kv_heads * a.head_dim);
            EXPECT_EQ(s.o.view.k, a.num_heads * a.head_dim);
            EXPECT_EQ(a.num_heads % a.num_kv_heads, 0);
            break;
          case AttentionKind::kMla:
            EXPECT_EQ(s.kv_b.view.n, a.num_heads * (a.nope_dim + a.v_head_dim));
            EXPECT_EQ(s.o.view.k, a.num_heads * a.v_head_dim);
            break;
          case AttentionKind::kDeltaNet: {
            const int keys = a.key_heads * a.key_dim, values = a.value_heads * a.value_dim;
            EXPECT_EQ(static_cast<int>(RowsOf(s.delta_qkv).size()),
                      2 * keys + (a.grouped_projections ? 2 : 1) * values);
            EXPECT_EQ(static_cast<int>(RowsOf(s.delta_b).size()),
                      (a.grouped_projections ? 2 : 1) * a.value_heads);
            EXPECT_EQ(s.conv.size(), (2 * keys + values) * a.conv_kernel);
            EXPECT_EQ(s.o.view.k, values);
            break;
          }
        }
      }
    }
  }
}

// A rank's key head is the one that its query heads had in the whole model.
TEST_P(TensorShardTest, QueryHeadsKeepTheirKeyHeads) {
  for (int size : ShardDegrees(model_.config)) {
    Cut(size);
    for (size_t l = 0; l < model_.config.layers.size(); ++l) {
      const AttentionConfig& a =
          model_.config.attentions[static_cast<size_t>(model_.config.layers[l].attention)];
      if (a.kind != AttentionKind::kGqa) continue;
      const auto keys = RowsOf(model_.stored.layers[l].k);
      for (int rank = 0; rank < size; ++rank) {
        const TensorShard& shard = shards_[static_cast<size_t>(rank)];
        const AttentionConfig& own =
            shard.config.attentions[static_cast<size_t>(shard.config.layers[l].attention)];
        const auto own_keys = RowsOf(shard.stored.layers[l].k);
        for (int h = 0; h < own.num_heads; ++h) {
          const int whole_key = (rank * own.num_heads + h) / (a.num_heads / a.num_kv_heads);
          const int own_key = h / (own.num_heads / own.num_kv_heads);
          EXPECT_EQ(own_keys[static_cast<size_t>(own_key * a.head_dim)],
                    keys[static_cast<size_t>(whole_key * a.head_dim)]);
        }
      }
    }
  }
}

TEST_P(TensorShardTest, GatheredRowsKeepTheirValues) {
  for (int size : ShardDegrees(model_.config)) {
    Cut(size);
    for (const TensorShard& shard : shards_) {
      for (const StoredLayer& s : shard.stored.layers) {
        for (const StoredMatrix* m : {&s.delta_qkv, &s.delta_b, &s.q}) {
          if (!*m) continue;
          const GatheredMatrix gathered = GatherRows(*m, true);
          EXPECT_EQ(RowsOf({gathered.view, m->codes, m->scales}), RowsOf(*m));
          const MatrixView shape = GatherRows(*m, false).view;
          EXPECT_EQ(shape.n, gathered.view.n);
          EXPECT_EQ(shape.block_rows, gathered.view.block_rows);
        }
      }
    }
  }
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(KT_SOURCE_DIR "/tests/data/models")) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}
INSTANTIATE_TEST_SUITE_P(Models, TensorShardTest, ::testing::ValuesIn(Names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

ModelConfig Heads(int heads, int kv_heads) {
  ModelConfig config;
  AttentionConfig& a = config.attentions.emplace_back();
  a.num_heads = heads;
  a.num_kv_heads = kv_heads;
  return config;
}

TEST(ShardDegreesTest, DivideTheHeads) {
  EXPECT_THAT(ShardDegrees(Heads(8, 4)), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(ShardDegrees(Heads(6, 2)), ElementsAre(1, 2, 6));
  EXPECT_THAT(ShardDegrees(Heads(96, 8)), ElementsAre(1, 2, 4, 8));
  ModelConfig hybrid = Heads(16, 2);
  AttentionConfig& delta = hybrid.attentions.emplace_back();
  delta.kind = AttentionKind::kDeltaNet;
  delta.key_heads = 2;
  delta.value_heads = 4;
  EXPECT_THAT(ShardDegrees(hybrid), ElementsAre(1, 2, 4));
}

TEST(ShardDegreesTest, ARefusalNamesHeadsAndDegrees) {
  EXPECT_TRUE(CheckShards(Heads(8, 4), 8).ok());
  EXPECT_EQ(Message(CheckShards(Heads(8, 4), 3)),
            "3 ranks cannot share the model's 8 attention heads; give 1, 2, 4, 8");
  EXPECT_THAT(Message(CheckShards(Heads(12, 8), 6)), HasSubstr("8 key-value heads"));
}

TEST(TilesOfRankTest, WholeTilesAsEvenAsTheyGo) {
  int begin = 0;
  for (int rank = 0; rank < 8; ++rank) {
    const RowRange r = TilesOfRank(200, rank, 8);  // 13 tiles, the last one of 8 rows
    EXPECT_EQ(r.begin, begin);
    EXPECT_TRUE(r.end % kShardTileRows == 0 || r.end == 200);
    EXPECT_LE(r.size(), 2 * kShardTileRows);
    begin = r.end;
  }
  EXPECT_EQ(begin, 200);
  int holders = 0;
  for (int rank = 0; rank < 8; ++rank) holders += TilesOfRank(40, rank, 8).size() > 0;
  EXPECT_EQ(holders, 3);
}

}  // namespace
}  // namespace kt
