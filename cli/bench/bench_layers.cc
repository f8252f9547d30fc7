// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "common/base/status.h"

namespace kt::cli {
namespace {

size_t Align(size_t bytes) { return (bytes + 63) / 64 * 64; }

PackedMatrix PackedOf(const BenchFormat& format, int n, int k) {
  return {.n = n,
          .k = k,
          .format = format.int8_x ? Int8XFormat(*format.int8_x, k)
                                  : PackedFormatOf(ViewOf(format, n, k), false)};
}

// Gate, up and down.
std::array<PackedMatrix, 3> MatricesOf(const BenchFormat& format, const MoeShape& shape) {
  const PackedMatrix up = PackedOf(format, shape.intermediate, shape.hidden);
  return {up, up, PackedOf(format, shape.hidden, shape.intermediate)};
}

size_t BytesOf(const PackedMatrix& m) { return Align(PackedBytes(m.n, m.k, m.format)); }

// The tensors of one expert's matrix.
absl::StatusOr<MatrixView> StoredView(const Checkpoint& checkpoint, const std::string& module,
                                      const BenchFormat& format, int n, int k) {
  MatrixView view = ViewOf(format, n, k);
  const auto find = [&](const std::string& name, int64_t bytes) -> absl::StatusOr<const uint8_t*> {
    const TensorInfo* tensor = checkpoint.Find(name);
    if (tensor == nullptr)
      return InvalidArgument("--weights {}: there is no tensor {}", checkpoint.dir(), name);
    if (tensor->data.size() != static_cast<size_t>(bytes)) {
      return InvalidArgument("--weights {}: tensor {} has {} bytes, but {} [{}, {}] takes {}",
                             checkpoint.dir(), name, tensor->data.size(), format.name, n, k, bytes);
    }
    return tensor->data.data();
  };
  KT_ASSIGN_OR_RETURN(view.codes, find(module + ".weight", n * view.code_row_stride));
  if (view.scale != ScaleType::kNone) {
    const int64_t rows = (n + view.block_rows - 1) / view.block_rows;
    KT_ASSIGN_OR_RETURN(view.scales, find(module + ".weight_scale", rows * view.scale_row_stride));
  }
  return view;
}

std::string ExpertName(int layer, int expert) {
  return fmt::format("model.layers.{}.mlp.experts.{}.", layer, expert);
}

// Where a matrix of an arena lies, to be written.
uint8_t* BytesToFill(const PackedMatrix& m) { return const_cast<uint8_t*>(m.data); }

// False: a code is not a number.
bool PackExpert(const std::array<MatrixView, 3>& views, const ExpertWeights& expert) {
  const PackedMatrix* matrices[] = {&expert.gate, &expert.up, &expert.down};
  bool numbers = true;
  for (int m = 0; m < 3; ++m) {
    if (!Pack(views[m], matrices[m]->format, 0, Tiles(views[m].n), BytesToFill(*matrices[m])))
      numbers = false;
  }
  return numbers;
}

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
  size_t bytes = 0;
  for (const PackedMatrix& m : MatricesOf(format, shape)) bytes += BytesOf(m);
  return bytes;
}

absl::StatusOr<BenchLayers> BenchLayers::Allocate(const std::array<PackedMatrix, 3>& first,
                                                  int layers, int experts,
                                                  const topology::Topology& topology,
                                                  int memory_node, Parallel& parallel) {
  BenchLayers made;
  made.layers_ = layers;
  for (const PackedMatrix& m : first) made.expert_bytes_ += BytesOf(m);
  const size_t count = static_cast<size_t>(layers) * experts;
  KT_ASSIGN_OR_RETURN(made.arena_,
                      topology::MakeArena("kt-bench-weights", count * made.expert_bytes_, topology,
                                          memory_node, parallel));
  const uint8_t* at = made.arena_.segment.data();
  for (size_t e = 0; e < count; ++e) {
    ExpertWeights w{first[0], first[1], first[2]};
    for (PackedMatrix* m : {&w.gate, &w.up, &w.down}) {
      m->data = at;
      at += BytesOf(*m);
    }
    made.experts_.push_back(w);
  }
  return made;
}

absl::StatusOr<BenchLayers> BenchLayers::Random(const BenchFormat& format, const MoeShape& shape,
                                                int layers, const topology::Topology& topology,
                                                int memory_node, Parallel& parallel) {
  std::mt19937_64 rng(1);
  const RandomMatrix gate(format, shape.intermediate, shape.hidden, rng);
  const RandomMatrix up(format, shape.intermediate, shape.hidden, rng);
  const RandomMatrix down(format, shape.hidden, shape.intermediate, rng);
  KT_ASSIGN_OR_RETURN(BenchLayers made,
                      Allocate(MatricesOf(format, shape), layers, shape.num_experts, topology,
                               memory_node, parallel));
  if (!PackExpert({gate.view(), up.view(), down.view()}, made.experts_[0]))
    return absl::InternalError("random weights are no numbers");
  const uint8_t* first = made.arena_.segment.data();
  parallel.Run(static_cast<int>(made.experts_.size()) - 1, [&](int task, int) {
    std::memcpy(BytesToFill(made.experts_[task + 1].gate), first, made.expert_bytes_);
  });
  return made;
}

absl::StatusOr<BenchLayers> BenchLayers::Load(const BenchFormat& format, const MoeShape& shape,
                                              const Checkpoint& checkpoint,
                                              const topology::Topology& topology, int memory_node,
                                              Parallel& parallel) {
  int layers = 0;
  while (checkpoint.Find(ExpertName(layers, 0) + "gate_proj.weight") != nullptr) ++layers;
  if (layers == 0) {
    return InvalidArgument("--weights {}: there is no tensor {}gate_proj.weight", checkpoint.dir(),
                           ExpertName(0, 0));
  }
  std::vector<std::array<MatrixView, 3>> views;
  for (int l = 0; l < layers; ++l) {
    for (int e = 0; e < shape.num_experts; ++e) {
      const auto view = [&](const char* name, int n, int k) {
        return StoredView(checkpoint, ExpertName(l, e) + name, format, n, k);
      };
      KT_ASSIGN_OR_RETURN(MatrixView gate, view("gate_proj", shape.intermediate, shape.hidden));
      KT_ASSIGN_OR_RETURN(MatrixView up, view("up_proj", shape.intermediate, shape.hidden));
      KT_ASSIGN_OR_RETURN(MatrixView down, view("down_proj", shape.hidden, shape.intermediate));
      views.push_back({gate, up, down});
    }
  }
  KT_ASSIGN_OR_RETURN(BenchLayers made,
                      Allocate(MatricesOf(format, shape), layers, shape.num_experts, topology,
                               memory_node, parallel));
  std::atomic<int> nan{-1};
  parallel.Run(static_cast<int>(views.size()), [&](int e, int) {
    if (!PackExpert(views[e], made.experts_[e])) nan = e;
    for (const MatrixView& view : views[e])
      checkpoint.Release(view.codes, view.n * view.code_row_stride);
  });
  if (nan >= 0) {
    return InvalidArgument("--weights {}: expert {} of layer {} has a code that is not a number",
                           checkpoint.dir(), nan % shape.num_experts, nan / shape.num_experts);
  }
  return made;
}

}  // namespace kt::cli
