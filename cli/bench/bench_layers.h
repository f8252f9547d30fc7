// SPDX-License-Identifier: Apache-2.0
// Packed MoE layers to run kernels on, in the kind of memory the expert worker keeps them in.
#ifndef KT_CLI_BENCH_BENCH_LAYERS_H_
#define KT_CLI_BENCH_BENCH_LAYERS_H_

#include <array>
#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/bench/bench_format.h"
#include "common/base/parallel.h"
#include "common/topology/arena.h"
#include "common/topology/topology.h"
#include "common/weights/checkpoint.h"
#include "kernels/cpu/expert_ffn/moe_ffn.h"

namespace kt::cli {

// How many layers of how many experts are made.
struct LayerPlan {
  int layers = 0;
  int experts = 0;  // of a layer; fewer than the shape has where memory is short
};

// As many layers as it takes that between two visits to a layer kCaches times `cache_bytes` are
// read when only top_k experts are active, at least two, and no more than fit `memory_bytes`.
// ResourceExhausted: two layers with top_k experts do not.
absl::StatusOr<LayerPlan> PlanLayers(const MoeShape& shape, size_t expert_bytes, size_t cache_bytes,
                                     size_t memory_bytes);

// Owns the weights. Immutable.
class BenchLayers {
 public:
  // Bytes of one packed expert.
  static size_t ExpertBytes(const BenchFormat& format, const MoeShape& shape);

  // Random weights, the same in every expert: each is read from its own memory. `shape` has the
  // plan's number of experts.
  static absl::StatusOr<BenchLayers> Random(const BenchFormat& format, const MoeShape& shape,
                                            int layers, const topology::Topology& topology,
                                            int memory_node, Parallel& parallel);

  // The experts of a checkpoint, model.layers.L.mlp.experts.E.{gate,up,down}_proj.{weight,
  // weight_scale} for L from 0 on and all experts of the shape: codes and scales in the bytes that
  // ViewOf(format) describes, of any dtype. InvalidArgument: a tensor is absent or of another size.
  static absl::StatusOr<BenchLayers> Load(const BenchFormat& format, const MoeShape& shape,
                                          const Checkpoint& checkpoint,
                                          const topology::Topology& topology, int memory_node,
                                          Parallel& parallel);

  int layers() const { return layers_; }
  const ExpertWeights* layer(int layer) const {
    return experts_.data() + static_cast<size_t>(layer) * (experts_.size() / layers_);
  }
  size_t expert_bytes() const { return expert_bytes_; }
  size_t bytes() const { return arena_.segment.size(); }
  std::string arena_facts() const { return topology::Describe(arena_.facts); }

 private:
  // Memory for so many experts like the first, each with its matrices at their places.
  static absl::StatusOr<BenchLayers> Allocate(const std::array<PackedMatrix, 3>& first, int layers,
                                              int experts, const topology::Topology& topology,
                                              int memory_node, Parallel& parallel);

  topology::Arena arena_;  // as the expert worker has for its weights
  int layers_ = 0;
  size_t expert_bytes_ = 0;
  std::vector<ExpertWeights> experts_;  // [layers][experts], of the arena
};

}  // namespace kt::cli

#endif  // KT_CLI_BENCH_BENCH_LAYERS_H_
