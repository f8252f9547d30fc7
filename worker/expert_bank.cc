// SPDX-License-Identifier: Apache-2.0
#include "worker/expert_bank.h"

#include <algorithm>
#include <atomic>

#include "common/base/status.h"
#include "kernels/cpu/gemm/gemm.h"

namespace kt {
namespace {

const bf16* Bf16(const TensorInfo& t) { return reinterpret_cast<const bf16*>(t.data.data()); }

size_t ExpertBytes(const MoeConfig& moe, IntermediateSlice slice) {
  int rows = slice.end - slice.begin;
  return 2 * PackedBf16Bytes(rows, moe.width) + PackedBf16Bytes(moe.width, rows);
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

size_t ExpertBank::Bytes(const ModelConfig& config, const ExpertSets& sets,
                         IntermediateSlice slice) {
  size_t bytes = 0;
  for (size_t l = 0; l < sets.size(); ++l) {
    if (!sets[l].empty())
      bytes += sets[l].size() *
               ExpertBytes(config.moes[static_cast<size_t>(*config.layers[l].moe)], slice);
  }
  return bytes;
}

absl::StatusOr<ExpertBank> ExpertBank::Load(const ModelConfig& config, const Checkpoint& checkpoint,
                                            const ExpertSets& sets, IntermediateSlice slice,
                                            uint8_t* memory, Parallel& parallel,
                                            const std::function<void(uint64_t)>& progress) {
  ModelTensors names = TensorNames(config);
  ExpertBank bank;
  bank.experts_.resize(config.layers.size());
  uint64_t bytes_read = 0;
  for (size_t l = 0; l < config.layers.size(); ++l) {
    if (!config.layers[l].moe) continue;
    const MoeConfig& moe = config.moes[static_cast<size_t>(*config.layers[l].moe)];
    std::vector<ExpertWeights>& layer = bank.experts_[l];
    layer.resize(static_cast<size_t>(moe.num_experts));
    int rows = slice.end - slice.begin;
    size_t gate_bytes = PackedBf16Bytes(rows, moe.width);
    size_t expert_bytes = ExpertBytes(moe, slice);
    std::atomic<bool> missing{false};
    parallel.Run(static_cast<int>(sets[l].size()), [&](int i, int) {
      size_t e = static_cast<size_t>(sets[l][static_cast<size_t>(i)]);
      const auto& expert = names.layers[l].experts[e];
      const TensorInfo* gate = checkpoint.Find(expert.gate);
      const TensorInfo* up = checkpoint.Find(expert.up);
      const TensorInfo* down = checkpoint.Find(expert.down);
      if (gate == nullptr || up == nullptr || down == nullptr) {
        missing = true;
        return;
      }
      uint8_t* base = memory + static_cast<size_t>(i) * expert_bytes;
      auto* packed_gate = reinterpret_cast<bf16*>(base);
      auto* packed_up = reinterpret_cast<bf16*>(base + gate_bytes);
      auto* packed_down = reinterpret_cast<bf16*>(base + 2 * gate_bytes);
      int64_t first_row = int64_t{slice.begin} * moe.width;
      PackBf16(Bf16(*gate) + first_row, moe.width, rows, moe.width, packed_gate);
      PackBf16(Bf16(*up) + first_row, moe.width, rows, moe.width, packed_up);
      PackBf16(Bf16(*down) + slice.begin, moe.intermediate, moe.width, rows, packed_down);
      layer[e] = {packed_gate, packed_up, packed_down};
      for (const TensorInfo* t : {gate, up, down}) checkpoint.Release(*t);
    });
    if (missing) return DataLoss("layer {}: a tensor of an expert is missing in the checkpoint", l);
    memory += sets[l].size() * expert_bytes;
    bytes_read += sets[l].size() * static_cast<uint64_t>(3) * static_cast<uint64_t>(moe.width) *
                  static_cast<uint64_t>(moe.intermediate) * 2;
    progress(bytes_read);
  }
  return bank;
}

}  // namespace kt
