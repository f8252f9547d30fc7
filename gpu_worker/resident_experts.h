// SPDX-License-Identifier: Apache-2.0
// The experts resident on the device. Either they stay what they were packed as at start, or they
// lie in slots, in pieces of the form that the CPU workers' experts have, and change places with
// those in layerwise steps.
//
// Version  1 for the placement at start, one more for every step that has changed something. A step
//          may be undone until the next one begins: what it displaced is copied back from the
//          arenas.
// Threads  as Device
#ifndef KT_GPU_WORKER_RESIDENT_EXPERTS_H_
#define KT_GPU_WORKER_RESIDENT_EXPERTS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "gpu_worker/device.h"
#include "gpu_worker/expert_pieces.h"
#include "worker/expert_bank.h"

namespace kt {

class ResidentExperts {
 public:
  // Those of `bank`, of so many rows; it outlives this. No rows: other ranks have them.
  static ResidentExperts Fixed(const ModelConfig& config, const ExpertBank* bank,
                               const ExpertSets& sets, int intermediate);
  // Slots for as many as `initial` names. They are empty until Reset; `device` and `pieces` outlive
  // this.
  static absl::StatusOr<ResidentExperts> Changing(const ModelConfig& config, Device& device,
                                                  const ExpertPieces& pieces,
                                                  const ExpertSets& initial);
  // Device memory of these slots.
  static size_t ChangingBytes(const ExpertPieces& pieces, const ExpertSets& initial);

  // What to compute a layer's residents with; none: it has no residents.
  std::span<const ExpertPart> parts(size_t layer) const { return layers_[layer].parts; }
  // [num_experts]: 1 for residents; empty for dense layers.
  const std::vector<uint8_t>& flags(size_t layer) const { return layers_[layer].flags; }
  std::vector<int> set(size_t layer) const;  // ascending
  uint64_t version() const { return version_; }
  // Layers that the last step has changed.
  std::vector<size_t> changed() const;

  // For slots only.
  // Back to the placement at start, version 1, from these arenas.
  absl::Status Reset(const ExpertArenas& arenas);
  // A step with this placement version begins: the last one is over, or undone (from `arenas`).
  // FailedPrecondition: it is another version than those two.
  absl::Status BeginStep(uint64_t version, const ExpertArenas* arenas);
  // Makes `set` the layer's residents, ascending and as many as there are; newcomers are taken from
  // `copied`, which has the pieces of the layer.
  absl::Status Change(size_t layer, std::span<const int> set, std::span<const ExpertPart> copied);

 private:
  struct Layer {
    std::vector<ExpertPart> parts;
    std::vector<uint8_t> flags;
    // Slots: [piece][expert] is where a resident lies.
    std::vector<std::vector<ExpertWeights>> tables;
    std::vector<int> initial, slots;    // the expert of each slot; -1: none
    std::vector<uint8_t*> slot_memory;  // [piece]
    std::vector<size_t> slot_bytes;     // [piece]
  };

  void Vacate(Layer& layer, size_t slot);
  void Occupy(Layer& layer, size_t l, size_t slot, int expert);
  uint8_t* SlotAt(const Layer& layer, size_t piece, size_t slot) const {
    return layer.slot_memory[piece] + slot * layer.slot_bytes[piece];
  }
  absl::Status Fill(size_t l, const std::vector<int>& experts, const ExpertArenas& arenas);

  Device* device_ = nullptr;
  const ExpertPieces* pieces_ = nullptr;
  DeviceBuffer memory_;
  std::vector<Layer> layers_;
  uint64_t version_ = 1;
  std::vector<std::pair<size_t, std::vector<int>>> undo_;  // layers, slots before the last step
};

}  // namespace kt

#endif  // KT_GPU_WORKER_RESIDENT_EXPERTS_H_
