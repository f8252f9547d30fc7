// SPDX-License-Identifier: Apache-2.0
// What a rank can take of the experts that CPU workers hold: where in their arenas, and how it lies
// on the device. A rank's slice of the intermediate dimension falls into pieces, one for each
// worker whose slice it meets; a piece of an expert is an expert of few rows, computed as it is.
// Results of pieces add up, in worker order, as those of the workers do.
#ifndef KT_GPU_WORKER_EXPERT_PIECES_H_
#define KT_GPU_WORKER_EXPERT_PIECES_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ipc/segment.h"
#include "proto/gpu_worker.pb.h"
#include "worker/expert_layout.h"

namespace kt {

// Experts that one call computes.
struct ExpertPart {
  const ExpertWeights* experts;  // [num_experts]; null pointers: not here
  int intermediate;              // rows of each
};

// Immutable.
class ExpertPieces {
 public:
  // `sets`: what every CPU worker holds, in this form, of experts stored so.
  static absl::StatusOr<ExpertPieces> Make(const StoredModel& stored, const ExpertSets& sets,
                                           const ExpertForm& form, int intermediate, int workers,
                                           IntermediateSlice rank);

  struct Piece {
    int worker;
    IntermediateSlice slice;
    // [layer][expert]; empty: no worker holds it.
    std::vector<std::vector<std::optional<ExpertCut>>> cuts;
  };
  const std::vector<Piece>& pieces() const { return pieces_; }
  const std::vector<BankLayout>& banks() const { return banks_; }  // of every worker
  // Null: no worker holds the expert.
  const ExpertCut* Cut(size_t piece, size_t layer, int expert) const {
    const auto& cut = pieces_[piece].cuts[layer][static_cast<size_t>(expert)];
    return cut ? &*cut : nullptr;
  }
  size_t layers() const { return sets_.size(); }
  // Experts that the workers hold, ascending.
  const std::vector<int>& held(size_t layer) const { return sets_[layer]; }
  int experts(size_t layer) const { return experts_[layer]; }  // of the model; 0: a dense layer
  // Device memory for all pieces of an expert.
  size_t Bytes(size_t layer, int expert) const;

 private:
  ExpertSets sets_;
  std::vector<int> experts_;
  std::vector<BankLayout> banks_;
  std::vector<Piece> pieces_;
};

// The arenas of one generation of CPU workers, mapped for reading. Immutable.
class ExpertArenas {
 public:
  using Open = std::function<absl::StatusOr<Segment>(const std::string& name)>;
  // FailedPrecondition: an arena is not what its worker's bank should be. NotFound: it has gone.
  static absl::StatusOr<std::shared_ptr<const ExpertArenas>> Map(
      const proto::AttachExpertsRequest& workers, const ExpertPieces& pieces, const Open& open);

  const std::vector<Segment>& segments() const { return segments_; }
  const uint8_t* bank(int worker) const;

 private:
  std::vector<Segment> segments_;
};

}  // namespace kt

#endif  // KT_GPU_WORKER_EXPERT_PIECES_H_
