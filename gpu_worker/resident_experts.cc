// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/resident_experts.h"

#include <algorithm>

#include "common/base/status.h"
#include "gpu_worker/copy_experts.h"

namespace kt {
namespace {

// Of one slot for a piece of any of the layer's experts.
size_t SlotBytes(const ExpertPieces& pieces, size_t piece, size_t layer) {
  size_t bytes = 0;
  for (int e : pieces.held(layer))
    bytes = std::max(bytes, pieces.Cut(piece, layer, e)->layout.bytes());
  return bytes;
}

std::vector<uint8_t> FlagsOf(const ModelConfig& config, size_t layer) {
  const std::optional<int>& moe = config.layers[layer].moe;
  return std::vector<uint8_t>(
      moe ? static_cast<size_t>(config.moes[static_cast<size_t>(*moe)].num_experts) : 0);
}

}  // namespace

ResidentExperts ResidentExperts::Fixed(const ModelConfig& config, const ExpertBank* bank,
                                       const ExpertSets& sets, int intermediate) {
  ResidentExperts out;
  for (size_t l = 0; l < sets.size(); ++l) {
    Layer& layer = out.layers_.emplace_back();
    layer.flags = FlagsOf(config, l);
    for (int e : sets[l]) layer.flags[static_cast<size_t>(e)] = 1;
    if (!sets[l].empty() && intermediate > 0)
      layer.parts = {{bank->layer(static_cast<int>(l)), intermediate}};
  }
  return out;
}

size_t ResidentExperts::ChangingBytes(const ExpertPieces& pieces, const ExpertSets& initial) {
  size_t bytes = 0;
  for (size_t l = 0; l < initial.size(); ++l) {
    for (size_t p = 0; p < pieces.pieces().size(); ++p)
      bytes += initial[l].size() * SlotBytes(pieces, p, l);
  }
  return bytes;
}

absl::StatusOr<ResidentExperts> ResidentExperts::Changing(const ModelConfig& config, Device& device,
                                                          const ExpertPieces& pieces,
                                                          const ExpertSets& initial) {
  ResidentExperts out;
  out.device_ = &device;
  out.pieces_ = &pieces;
  const size_t bytes = ChangingBytes(pieces, initial);
  if (bytes > 0) {
    KT_ASSIGN_OR_RETURN(out.memory_,
                        device.Allocate(bytes, "resident experts (--kt-num-gpu-experts)"));
  }
  uint8_t* memory = out.memory_.As<uint8_t>();
  out.layers_.resize(initial.size());
  for (size_t l = 0; l < initial.size(); ++l) {
    Layer& layer = out.layers_[l];
    layer.flags = FlagsOf(config, l);
    layer.initial = initial[l];
    layer.slots.assign(initial[l].size(), -1);
    if (initial[l].empty()) continue;
    for (size_t p = 0; p < pieces.pieces().size(); ++p) {
      layer.slot_memory.push_back(memory);
      layer.slot_bytes.push_back(SlotBytes(pieces, p, l));
      memory += layer.slots.size() * layer.slot_bytes.back();
      layer.tables.emplace_back(layer.flags.size());
    }
    for (size_t p = 0; p < layer.tables.size(); ++p)
      layer.parts.push_back({layer.tables[p].data(), pieces.pieces()[p].slice.rows()});
  }
  return out;
}

std::vector<int> ResidentExperts::set(size_t layer) const {
  std::vector<int> set;
  const std::vector<uint8_t>& flags = layers_[layer].flags;
  for (size_t e = 0; e < flags.size(); ++e) {
    if (flags[e] != 0) set.push_back(static_cast<int>(e));
  }
  return set;
}

std::vector<size_t> ResidentExperts::changed() const {
  std::vector<size_t> layers;
  for (const auto& [layer, slots] : undo_) layers.push_back(layer);
  return layers;
}

void ResidentExperts::Vacate(Layer& layer, size_t slot) {
  const int expert = std::exchange(layer.slots[slot], -1);
  if (expert < 0) return;
  layer.flags[static_cast<size_t>(expert)] = 0;
  for (auto& table : layer.tables) table[static_cast<size_t>(expert)] = {};
}

void ResidentExperts::Occupy(Layer& layer, size_t l, size_t slot, int expert) {
  layer.slots[slot] = expert;
  layer.flags[static_cast<size_t>(expert)] = 1;
  for (size_t p = 0; p < layer.tables.size(); ++p) {
    layer.tables[p][static_cast<size_t>(expert)] =
        pieces_->Cut(p, l, expert)->layout.At(SlotAt(layer, p, slot));
  }
}

// Makes slots hold these experts; where they do not yet, from the arenas.
absl::Status ResidentExperts::Fill(size_t l, const std::vector<int>& experts,
                                   const ExpertArenas& arenas) {
  Layer& layer = layers_[l];
  for (size_t slot = 0; slot < experts.size(); ++slot) {
    if (layer.slots[slot] != experts[slot]) Vacate(layer, slot);
  }
  for (size_t slot = 0; slot < experts.size(); ++slot) {
    const int expert = experts[slot];
    if (layer.slots[slot] == expert) continue;
    for (size_t p = 0; p < layer.tables.size(); ++p) {
      const int worker = pieces_->pieces()[p].worker;
      const size_t at = pieces_->banks()[static_cast<size_t>(worker)].Find(l, expert)->at;
      KT_RETURN_IF_ERROR(CopyRuns(pieces_->Cut(p, l, expert)->runs, arenas.bank(worker) + at,
                                  SlotAt(layer, p, slot), StreamId{}, *device_));
    }
    Occupy(layer, l, slot, expert);
  }
  return absl::OkStatus();
}

absl::Status ResidentExperts::Reset(const ExpertArenas& arenas) {
  for (size_t l = 0; l < layers_.size(); ++l)
    KT_RETURN_IF_ERROR(Fill(l, layers_[l].initial, arenas));
  version_ = 1;
  undo_.clear();
  return device_->Synchronize(StreamId{});
}

absl::Status ResidentExperts::BeginStep(uint64_t version, const ExpertArenas* arenas) {
  if (version == version_) {
    undo_.clear();
    return absl::OkStatus();
  }
  if (undo_.empty() || version + 1 != version_ || arenas == nullptr) {
    return FailedPrecondition(
        "step: placement version {}, this worker has {}: its residents are others than the plan "
        "takes for granted",
        version, version_);
  }
  for (const auto& [layer, slots] : undo_) KT_RETURN_IF_ERROR(Fill(layer, slots, *arenas));
  KT_RETURN_IF_ERROR(device_->Synchronize(StreamId{}));
  undo_.clear();
  version_ = version;
  return absl::OkStatus();
}

absl::Status ResidentExperts::Change(size_t l, std::span<const int> set,
                                     std::span<const ExpertPart> copied) {
  Layer& layer = layers_[l];
  std::vector<int> newcomers;
  std::vector<size_t> free_slots;
  for (int e : set) {
    if (layer.flags[static_cast<size_t>(e)] == 0) newcomers.push_back(e);
  }
  if (newcomers.empty()) return absl::OkStatus();
  if (undo_.empty()) ++version_;
  undo_.emplace_back(l, layer.slots);
  for (size_t slot = 0; slot < layer.slots.size(); ++slot) {
    if (std::binary_search(set.begin(), set.end(), layer.slots[slot])) continue;
    Vacate(layer, slot);
    free_slots.push_back(slot);
  }
  for (size_t i = 0; i < newcomers.size(); ++i) {
    const int expert = newcomers[i];
    for (size_t p = 0; p < layer.tables.size(); ++p) {
      KT_RETURN_IF_ERROR(device_->CopyAsync(
          SlotAt(layer, p, free_slots[i]), copied[p].experts[static_cast<size_t>(expert)].gate.data,
          pieces_->Cut(p, l, expert)->layout.bytes(), CopyKind::kDeviceToDevice, StreamId{}));
    }
    Occupy(layer, l, free_slots[i], expert);
  }
  return absl::OkStatus();
}

}  // namespace kt
