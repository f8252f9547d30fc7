// SPDX-License-Identifier: Apache-2.0
// One rank's part of a model under tensor parallelism: its own ModelConfig with fewer heads and
// narrower layers, and its own StoredModel of views of the same bytes. What works on a model works
// on a shard, and the parts that the ranks compute add up (docs/architecture.md).
//
//   by heads            q, k, v with biases, sinks, output gates; kv_b; delta-net heads; the
//                       columns of o. Key heads that are fewer than the ranks are held by several.
//   by tiles of rows    gate and up, and the columns of down, of dense layers and shared experts;
//                       rows of embedding and head. Uneven, or none, where tiles are few.
//   on every rank       norms, router, low-rank projections of latent attention, indexers
//   on rank 0 alone     o_bias, which is added to the sum once
//   as they are packed  routed experts: TilesOfRank of their rows; the views are those of the whole
#ifndef KT_COMMON_WEIGHTS_TENSOR_SHARD_H_
#define KT_COMMON_WEIGHTS_TENSOR_SHARD_H_

#include <vector>

#include "absl/status/status.h"
#include "common/weights/stored_model.h"

namespace kt {

inline constexpr int kShardTileRows = 16;  // as in docs/formats/packed_expert.md
inline constexpr int kShardsMax = 8;

struct RowRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
};

// Of `rows` rows the whole tiles of `rank`, as even as they go; empty where there are too few.
RowRange TilesOfRank(int rows, int rank, int size);

// 1 to kShardsMax: those that divide the heads of every layer.
std::vector<int> ShardDegrees(const ModelConfig& config);
// InvalidArgument: the heads that `size` ranks cannot share, and the degrees that can.
absl::Status CheckShards(const ModelConfig& config, int size);

struct TensorShard {
  ModelConfig config;  // vocab is that of the whole model
  StoredModel stored;
};
// The tensors outlive the shard. CheckShards(config, size) has passed.
TensorShard ShardOf(const ModelConfig& config, const StoredModel& stored, int rank, int size);

// A matrix with `more`, its rows brought together in memory of its own, each with a row of scales.
struct GatheredMatrix {
  MatrixView view;
  std::vector<uint8_t> codes, scales;
};
// `copy` false: the view's shape and format alone.
GatheredMatrix GatherRows(const StoredMatrix& stored, bool copy);

}  // namespace kt

#endif  // KT_COMMON_WEIGHTS_TENSOR_SHARD_H_
