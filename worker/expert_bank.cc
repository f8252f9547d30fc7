// SPDX-License-Identifier: Apache-2.0
#include "worker/expert_bank.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <set>

#include "common/base/status.h"
#include "kernels/cpu/gemm/packed_matrix.h"
#include "worker/pack_stored.h"

namespace kt {
namespace {

std::array<const StoredMatrix*, 3> MatricesOf(const StoredExpert& e) {
  return {&e.ffn.gate, &e.ffn.up, &e.ffn.down};
}

void ReadBias(const StoredVector& stored, int begin, int n, uint8_t* at) {
  StoredVector slice = stored;
  slice.first += begin * stored.step;
  slice.n = n;
  slice.Read(reinterpret_cast<float*>(at));
}

// `nan`: the codes of a matrix that holds one.
ExpertWeights PackExpert(const StoredExpert& e, const ExpertLayout& l, IntermediateSlice slice,
                         uint8_t* base, std::atomic<const TensorInfo*>& nan) {
  auto pack = [&](const StoredMatrix& stored, const MatrixView& view, const PackedMatrix& matrix,
                  size_t at) {
    if (!Pack(view, matrix.format, 0, Tiles(view.n), base + at)) nan = stored.codes;
  };
  pack(e.ffn.gate, e.ffn.gate.view.Rows(slice.begin, slice.end), l.gate, 0);
  pack(e.ffn.up, e.ffn.up.view.Rows(slice.begin, slice.end), l.up, l.up_at());
  pack(e.ffn.down, e.ffn.down.view.Columns(slice.begin, slice.end), l.down, l.down_at());
  if (l.gate_bias) ReadBias(e.gate_bias, slice.begin, l.gate.n, base + l.gate_bias_at());
  if (l.up_bias) ReadBias(e.up_bias, slice.begin, l.up.n, base + l.up_bias_at());
  if (l.down_bias) ReadBias(e.down_bias, 0, l.down.n, base + l.down_bias_at());
  return l.At(base);
}

}  // namespace

absl::StatusOr<IntermediateSlice> SliceOfWorker(int intermediate, int index, int count) {
  int tiles = (intermediate + kTileRows - 1) / kTileRows;
  if (count > tiles) {
    return InvalidArgument(
        "--kt-threadpool-count: {} expert workers cannot share experts of {} rows, which are {} "
        "tiles of {}; use at most {}",
        count, intermediate, tiles, kTileRows, tiles);
  }
  return IntermediateSlice{tiles * index / count * kTileRows,
                           std::min(intermediate, tiles * (index + 1) / count * kTileRows)};
}

size_t ExpertBank::Bytes(const ModelConfig& config, const StoredModel& stored,
                         const ExpertSets& sets, IntermediateSlice slice, const ExpertForm& form) {
  size_t bytes = 0;
  for (size_t l = 0; l < sets.size(); ++l) bytes += LayerBytes(stored, sets, l, slice, form);
  return bytes;
}

size_t ExpertBank::LayerBytes(const StoredModel& stored, const ExpertSets& sets, size_t layer,
                              IntermediateSlice slice, const ExpertForm& form) {
  size_t bytes = 0;
  for (int e : sets[layer])
    bytes += LayoutOf(stored.layers[layer].experts[static_cast<size_t>(e)], slice, form).bytes();
  return bytes;
}

absl::StatusOr<ExpertBank> ExpertBank::Load(const ModelConfig& config, const StoredModel& stored,
                                            const Checkpoint& checkpoint, const ExpertSets& sets,
                                            IntermediateSlice slice, const ExpertForm& form,
                                            uint8_t* memory, Parallel& parallel,
                                            const std::function<void(uint64_t)>& progress) {
  for (const MoeConfig& moe : config.moes) {
    const int longest = std::max(moe.width, slice.end - slice.begin);
    if (form.int8_x && longest > kInt8XColumnsMax) {
      return InvalidArgument(
          "kt-method AMXINT8 or AMXINT4: expert weights have rows of {} values, at most {} can be "
          "summed up in 32 bits; leave kt-method out",
          longest, kInt8XColumnsMax);
    }
  }
  ExpertBank bank;
  bank.experts_.resize(config.layers.size());
  uint64_t packed = 0;
  std::atomic<const TensorInfo*> nan{nullptr};
  for (size_t l = 0; l < config.layers.size(); ++l) {
    const std::vector<StoredExpert>& experts = stored.layers[l].experts;
    std::vector<ExpertWeights>& layer = bank.experts_[l];
    layer.resize(experts.size());
    std::vector<size_t> at{0};
    for (int e : sets[l])
      at.push_back(at.back() + LayoutOf(experts[static_cast<size_t>(e)], slice, form).bytes());
    parallel.Run(static_cast<int>(sets[l].size()), [&](int i, int) {
      auto e = static_cast<size_t>(sets[l][static_cast<size_t>(i)]);
      const StoredExpert& expert = experts[e];
      layer[e] = PackExpert(expert, LayoutOf(expert, slice, form), slice,
                            memory + at[static_cast<size_t>(i)], nan);
      for (const StoredMatrix* m : MatricesOf(expert)) {
        if (m->view.code_column_stride == 0)
          checkpoint.Release(m->view.codes,
                             static_cast<size_t>(m->view.n * m->view.code_row_stride));
      }
    });
    if (nan != nullptr) return NanCode(*nan);
    // Scales, and what reading ahead has mapped of its neighbours again.
    std::set<const TensorInfo*> tensors;
    for (int e : sets[l]) {
      for (const StoredMatrix* m : MatricesOf(experts[static_cast<size_t>(e)])) {
        tensors.insert(m->codes);
        if (m->scales != nullptr) tensors.insert(m->scales);
      }
    }
    for (const TensorInfo* t : tensors) checkpoint.Release(*t);
    memory += at.back();
    packed += at.back();
    progress(packed);
  }
  return bank;
}

}  // namespace kt
