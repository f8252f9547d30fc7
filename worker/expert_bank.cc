// SPDX-License-Identifier: Apache-2.0
#include "worker/expert_bank.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <set>

#include "common/base/status.h"
#include "common/weights/weight_summary.h"
#include "kernels/cpu/gemm/packed_matrix.h"
#include "worker/pack_stored.h"

namespace kt {
namespace {

// Where the parts of one expert lie from its first byte on.
struct ExpertLayout {
  PackedMatrix gate, up, down;  // n, k and format
  MatrixView gate_view, up_view, down_view;
  size_t up_at, down_at, gate_bias_at, up_bias_at, down_bias_at, bytes;
};

size_t Align(size_t bytes) { return (bytes + 63) / 64 * 64; }

ExpertLayout LayoutOf(const StoredExpert& e, IntermediateSlice slice, const ExpertForm& form) {
  ExpertLayout l;
  l.gate_view = e.ffn.gate.view.Rows(slice.begin, slice.end);
  l.up_view = e.ffn.up.view.Rows(slice.begin, slice.end);
  l.down_view = e.ffn.down.view.Columns(slice.begin, slice.end);
  auto packed = [&](const MatrixView& view) {
    return PackedMatrix{.n = view.n,
                        .k = view.k,
                        .format = form.int8_x ? Int8XFormat(*form.int8_x, view.k)
                                              : PackedFormatOf(view, form.exact)};
  };
  auto bytes = [](const PackedMatrix& m) { return Align(PackedBytes(m.n, m.k, m.format)); };
  l.gate = packed(l.gate_view);
  l.up = packed(l.up_view);
  l.down = packed(l.down_view);
  const size_t rows_bytes = Align(static_cast<size_t>(l.gate.n) * sizeof(float));
  l.up_at = bytes(l.gate);
  l.down_at = l.up_at + bytes(l.up);
  l.gate_bias_at = l.down_at + bytes(l.down);
  l.up_bias_at = l.gate_bias_at + (e.gate_bias ? rows_bytes : 0);
  l.down_bias_at = l.up_bias_at + (e.up_bias ? rows_bytes : 0);
  // The bias behind the sum over all slices belongs to the first of them.
  const bool down_bias = e.down_bias && slice.begin == 0;
  l.bytes = l.down_bias_at + (down_bias ? Align(static_cast<size_t>(l.down.n) * sizeof(float)) : 0);
  return l;
}

std::array<const StoredMatrix*, 3> MatricesOf(const StoredExpert& e) {
  return {&e.ffn.gate, &e.ffn.up, &e.ffn.down};
}

const float* ReadBias(const StoredVector& stored, int begin, int n, uint8_t* at) {
  if (!stored) return nullptr;
  StoredVector slice = stored;
  slice.first += begin * stored.step;
  slice.n = n;
  auto* out = reinterpret_cast<float*>(at);
  slice.Read(out);
  return out;
}

// `nan`: the codes of a matrix that holds one.
ExpertWeights PackExpert(const StoredExpert& e, const ExpertLayout& l, IntermediateSlice slice,
                         uint8_t* base, std::atomic<const TensorInfo*>& nan) {
  auto pack = [&](const StoredMatrix& stored, const MatrixView& view, PackedMatrix matrix,
                  uint8_t* at) {
    if (!Pack(view, matrix.format, 0, Tiles(view.n), at)) nan = stored.codes;
    matrix.data = at;
    return matrix;
  };
  ExpertWeights w = {pack(e.ffn.gate, l.gate_view, l.gate, base),
                     pack(e.ffn.up, l.up_view, l.up, base + l.up_at),
                     pack(e.ffn.down, l.down_view, l.down, base + l.down_at)};
  w.gate.bias = ReadBias(e.gate_bias, slice.begin, l.gate.n, base + l.gate_bias_at);
  w.up.bias = ReadBias(e.up_bias, slice.begin, l.up.n, base + l.up_bias_at);
  if (slice.begin == 0) w.down.bias = ReadBias(e.down_bias, 0, l.down.n, base + l.down_bias_at);
  return w;
}

}  // namespace

ExpertForm ExpertFormOf(std::string_view kt_method, bool exact) {
  const int bits = RoundedBits(kt_method);
  ExpertForm form{.exact = exact};
  if (bits != 0) form.int8_x = bits == 8 ? PackedCode::kInt8 : PackedCode::kInt4;
  return form;
}

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
    bytes += LayoutOf(stored.layers[layer].experts[static_cast<size_t>(e)], slice, form).bytes;
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
      at.push_back(at.back() + LayoutOf(experts[static_cast<size_t>(e)], slice, form).bytes);
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
