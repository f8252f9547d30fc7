// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/expert_pieces.h"

#include "common/base/status.h"
#include "worker/expert_arena.h"
#include "worker/expert_bank.h"

namespace kt {

absl::StatusOr<ExpertPieces> ExpertPieces::Make(const StoredModel& stored, const ExpertSets& sets,
                                                const ExpertForm& form, int intermediate,
                                                int workers, IntermediateSlice rank) {
  ExpertPieces out;
  out.sets_ = sets;
  for (size_t l = 0; l < sets.size(); ++l)
    out.experts_.push_back(static_cast<int>(stored.layers[l].experts.size()));
  for (int w = 0; w < workers; ++w) {
    KT_ASSIGN_OR_RETURN(const IntermediateSlice held, SliceOfWorker(intermediate, w, workers));
    const BankLayout& bank = out.banks_.emplace_back(stored, sets, held, form);
    const IntermediateSlice slice = Intersect(held, rank);
    if (slice.rows() == 0) continue;
    Piece& piece = out.pieces_.emplace_back(Piece{w, slice, {}});
    for (size_t l = 0; l < sets.size(); ++l) {
      auto& cuts = piece.cuts.emplace_back(stored.layers[l].experts.size());
      for (int e : sets[l])
        cuts[static_cast<size_t>(e)] = CutExpert(bank.Find(l, e)->layout, held, slice);
    }
  }
  return out;
}

size_t ExpertPieces::Bytes(size_t layer, int expert) const {
  size_t bytes = 0;
  for (size_t p = 0; p < pieces_.size(); ++p) {
    if (const ExpertCut* cut = Cut(p, layer, expert)) bytes += cut->layout.bytes();
  }
  return bytes;
}

absl::StatusOr<std::shared_ptr<const ExpertArenas>> ExpertArenas::Map(
    const proto::AttachExpertsRequest& workers, const ExpertPieces& pieces, const Open& open) {
  auto arenas = std::make_shared<ExpertArenas>();
  const std::vector<BankLayout>& banks = pieces.banks();
  if (workers.workers_size() != static_cast<int>(banks.size())) {
    return FailedPrecondition("expert arenas: {} workers, configured are {}",
                              workers.workers_size(), banks.size());
  }
  for (size_t w = 0; w < banks.size(); ++w) {
    const proto::ExpertEndpoint& worker = workers.workers(static_cast<int>(w));
    const std::string name = ExpertArenaName(static_cast<int>(w), worker.incarnation());
    KT_ASSIGN_OR_RETURN(Segment segment, open(name));
    KT_RETURN_IF_ERROR(CheckArena(name, segment.data(), segment.size(), banks[w]));
    arenas->segments_.push_back(std::move(segment));
  }
  return arenas;
}

const uint8_t* ExpertArenas::bank(int worker) const {
  return segments_[static_cast<size_t>(worker)].data() + kArenaHeaderBytes;
}

}  // namespace kt
