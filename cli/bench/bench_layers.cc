// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_layers.h"

#include <algorithm>
#include <cstring>

#include "common/base/aligned_buffer.h"
#include "common/base/status.h"

namespace kt::cli {
namespace {

size_t Align(size_t bytes) { return (bytes + 63) / 64 * 64; }

// The memory of the expert worker's weights (cpu_expert_worker/main.cc), bound to a node.
absl::StatusOr<Segment> AllocateArena(size_t bytes, const topology::Topology& topology,
                                      int memory_node) {
  KT_ASSIGN_OR_RETURN(Segment arena, Segment::Create("kt-bench-weights", bytes));
  KT_RETURN_IF_ERROR(topology.BindMemory(arena.data(), bytes, memory_node));
  return arena;
}

PackedMatrix PackedOf(const MatrixView& view) {
  return {.n = view.n, .k = view.k, .format = PackedFormatOf(view, false)};
}

size_t BytesOf(const PackedMatrix& m) { return Align(PackedBytes(m.n, m.k, m.format)); }

// One expert's matrices, packed one behind the other.
struct PackedExpert {
  PackedExpert(const BenchFormat& format, const MoeShape& shape) {
    std::mt19937_64 rng(1);
    const RandomMatrix gate(format, shape.intermediate, shape.hidden, rng);
    const RandomMatrix up(format, shape.intermediate, shape.hidden, rng);
    const RandomMatrix down(format, shape.hidden, shape.intermediate, rng);
    const MatrixView* views[] = {&gate.view(), &up.view(), &down.view()};
    for (int m = 0; m < 3; ++m) {
      matrices[m] = PackedOf(*views[m]);
      bytes += BytesOf(matrices[m]);
    }
    packed = AlignedBuffer(bytes);
    size_t at = 0;
    for (int m = 0; m < 3; ++m) {
      Pack(*views[m], matrices[m].format, 0, Tiles(matrices[m].n), packed.data() + at);
      at += BytesOf(matrices[m]);
    }
  }

  // The same expert in a copy of its bytes.
  ExpertWeights At(const uint8_t* data) const {
    ExpertWeights w{matrices[0], matrices[1], matrices[2]};
    for (PackedMatrix* m : {&w.gate, &w.up, &w.down}) {
      m->data = data;
      data += BytesOf(*m);
    }
    return w;
  }

  PackedMatrix matrices[3];
  size_t bytes = 0;
  AlignedBuffer packed;
};

}  // namespace

absl::StatusOr<LayerPlan> PlanLayers(const MoeShape& shape, size_t expert_bytes, size_t cache_bytes,
                                     size_t memory_bytes) {
  constexpr size_t kCaches = 4, kLayersMin = 2;
  const size_t fitting = memory_bytes / expert_bytes;
  const size_t experts = std::min<size_t>(shape.num_experts, fitting / kLayersMin);
  if (experts < static_cast<size_t>(shape.top_k)) {
    return ResourceExhausted(
        "{} layers of {} experts of {:.1f} MB do not fit the {:.0f} MB that are available; free "
        "memory or use a smaller --shape",
        kLayersMin, shape.top_k, static_cast<double>(expert_bytes) / 1e6,
        static_cast<double>(memory_bytes) / 1e6);
  }
  const size_t wanted = kCaches * cache_bytes / (expert_bytes * shape.top_k) + 2;
  const size_t layers = std::clamp(wanted, kLayersMin, fitting / experts);
  return LayerPlan{static_cast<int>(layers), static_cast<int>(experts)};
}

size_t BenchLayers::ExpertBytes(const BenchFormat& format, const MoeShape& shape) {
  return 2 * BytesOf(PackedOf(ViewOf(format, shape.intermediate, shape.hidden))) +
         BytesOf(PackedOf(ViewOf(format, shape.hidden, shape.intermediate)));
}

absl::StatusOr<BenchLayers> BenchLayers::Random(const BenchFormat& format, const MoeShape& shape,
                                                int layers, const topology::Topology& topology,
                                                int memory_node, Parallel& parallel) {
  const PackedExpert expert(format, shape);
  const size_t bytes = expert.bytes;
  const int experts = layers * shape.num_experts;
  BenchLayers made;
  KT_ASSIGN_OR_RETURN(made.arena_, AllocateArena(experts * bytes, topology, memory_node));
  made.layers_ = layers;
  made.expert_bytes_ = bytes;
  for (int e = 0; e < experts; ++e)
    made.experts_.push_back(expert.At(made.arena_.data() + e * bytes));
  parallel.Run(experts, [&](int e, int) {
    std::memcpy(made.arena_.data() + e * bytes, expert.packed.data(), bytes);
  });
  return made;
}

}  // namespace kt::cli
