// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/expert_stream.h"

#include <algorithm>
#include <numeric>

#include "common/base/status.h"
#include "gpu_worker/copy_experts.h"
#include "spdlog/spdlog.h"

namespace kt {
namespace {

// Of the largest layer, without the smallest experts where so many stay on the device.
size_t LayerBytes(const ExpertPieces& pieces, const std::vector<size_t>& residents) {
  size_t largest = 0;
  for (size_t l = 0; l < pieces.layers(); ++l) {
    std::vector<size_t> bytes;
    for (int e : pieces.held(l)) bytes.push_back(pieces.Bytes(l, e));
    std::sort(bytes.begin(), bytes.end());
    const size_t kept = std::min(residents[l], bytes.size());
    largest = std::max(
        largest, std::accumulate(bytes.begin() + static_cast<long>(kept), bytes.end(), size_t{0}));
  }
  return largest;
}

}  // namespace

size_t ExpertStream::BufferBytes(const ExpertPieces& pieces, const std::vector<size_t>& residents) {
  return 2 * LayerBytes(pieces, residents);
}

absl::StatusOr<std::unique_ptr<ExpertStream>> ExpertStream::Create(
    Device& device, const ExpertPieces& pieces, const std::vector<size_t>& residents) {
  std::unique_ptr<ExpertStream> out(new ExpertStream(device, pieces));
  ExpertStream& s = *out;
  KT_ASSIGN_OR_RETURN(s.copies_, device.CreateStream());
  const size_t bytes = std::max<size_t>(LayerBytes(pieces, residents), 1);
  int experts_max = 0;
  for (size_t l = 0; l < pieces.layers(); ++l) {
    if (pieces.experts(l) == 0) continue;
    experts_max = std::max(experts_max, pieces.experts(l));
    Stage& stage = s.stages_.emplace_back(Stage{.layer = l, .was_wanted = false});
    for (EventId* event : {&stage.begun, &stage.copied, &stage.wanted}) {
      KT_ASSIGN_OR_RETURN(*event, device.CreateEvent());
    }
  }
  for (Buffer& b : s.buffers_) {
    KT_ASSIGN_OR_RETURN(
        b.memory,
        device.Allocate(bytes,
                        "a buffer of layerwise prefill (--kt-gpu-prefill-token-threshold 0 "
                        "does without, --kt-num-gpu-experts makes room)"));
    b.tables.resize(pieces.pieces().size());
    for (auto& table : b.tables) table.resize(static_cast<size_t>(experts_max));
    KT_ASSIGN_OR_RETURN(b.used, device.CreateEvent());
  }
  s.runs_.resize(pieces.pieces().size());
  return out;
}

ExpertStream::~ExpertStream() { SetArenas(nullptr).IgnoreError(); }

absl::Status ExpertStream::SetArenas(std::shared_ptr<const ExpertArenas> arenas) {
  if (arenas_ != nullptr) {
    for (size_t w = 0; w < registered_.size(); ++w) {
      if (registered_[w] != 0) device_.UnregisterHost(arenas_->segments()[w].data());
    }
  }
  arenas_ = std::move(arenas);
  registered_.clear();
  if (arenas_ == nullptr) return absl::OkStatus();
  for (const Segment& segment : arenas_->segments()) {
    const absl::Status status = device_.RegisterHost(segment.data(), segment.size());
    registered_.push_back(status.ok());
    if (!status.ok())
      spdlog::warn("layerwise prefill: copies of experts are staged by the driver: {}",
                   Message(status));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExpertStream::Rate> ExpertStream::Measure(const ResidentExperts& residents) {
  Rate rate;
  if (stages_.empty()) return rate;
  for (const Stage& stage : stages_) {
    for (int e : pieces_.held(stage.layer)) {
      if (residents.flags(stage.layer)[static_cast<size_t>(e)] == 0)
        rate.step_bytes += pieces_.Bytes(stage.layer, e);
    }
  }
  // The first round is the first touch of the pages.
  for (int round = 0; round < 2; ++round) {
    KT_RETURN_IF_ERROR(Begin(residents));
    KT_RETURN_IF_ERROR(End());
    if (times_.copy_ms > 0)
      rate.gbytes_per_s = static_cast<double>(times_.bytes) / times_.copy_ms / 1e6;
  }
  return rate;
}

absl::Status ExpertStream::Begin(const ResidentExperts& residents) {
  if (arenas_ == nullptr) return FailedPrecondition("layerwise step: no expert worker is attached");
  residents_ = &residents;
  issued_ = current_ = 0;
  times_ = {};
  for (Stage& stage : stages_) stage.was_wanted = false;
  for (size_t stage = 0; stage < std::min(buffers_.size(), stages_.size()); ++stage)
    KT_RETURN_IF_ERROR(Issue(stage));
  return absl::OkStatus();
}

// The copies of a stage, into a buffer that may still be in use.
absl::Status ExpertStream::Issue(size_t stage) {
  const Stage& s = stages_[stage];
  Buffer& b = BufferOf(stage);
  const std::vector<uint8_t>& resident = residents_->flags(s.layer);
  if (stage >= buffers_.size()) KT_RETURN_IF_ERROR(device_.Wait(copies_, b.used));
  KT_RETURN_IF_ERROR(device_.Record(s.begun, copies_));
  ++issued_;
  b.parts.clear();
  uint8_t* target = b.memory.As<uint8_t>();
  for (size_t p = 0; p < b.tables.size(); ++p) {
    const ExpertPieces::Piece& piece = pieces_.pieces()[p];
    const auto worker = static_cast<size_t>(piece.worker);
    std::vector<ExpertWeights>& table = b.tables[p];
    std::vector<CopyRun>& runs = runs_[p];
    std::fill(table.begin(), table.end(), ExpertWeights{});
    runs.clear();
    size_t bytes = 0;
    for (int e : pieces_.held(s.layer)) {
      if (resident[static_cast<size_t>(e)] != 0) continue;
      const ExpertCut& cut = *pieces_.Cut(p, s.layer, e);
      AppendRuns(cut.runs, pieces_.banks()[worker].Find(s.layer, e)->at, bytes, &runs);
      table[static_cast<size_t>(e)] = cut.layout.At(target + bytes);
      bytes += cut.layout.bytes();
    }
    if (bytes == 0) continue;
    KT_RETURN_IF_ERROR(CopyRuns(runs, arenas_->bank(piece.worker), target, copies_, device_));
    b.parts.push_back({table.data(), piece.slice.rows()});
    target += bytes;
    times_.bytes += bytes;
    if (registered_[worker] == 0) times_.staged += runs.size();
  }
  return device_.Record(s.copied, copies_);
}

absl::StatusOr<std::span<const ExpertPart>> ExpertStream::Layer(size_t layer) {
  Stage& s = stages_[current_];
  if (s.layer != layer)
    return Internal("layerwise step: layer {} is computed, {} is copied", layer, s.layer);
  KT_RETURN_IF_ERROR(device_.Record(s.wanted, StreamId{}));
  KT_RETURN_IF_ERROR(device_.Wait(StreamId{}, s.copied));
  s.was_wanted = true;
  return std::span<const ExpertPart>(BufferOf(current_).parts);
}

absl::Status ExpertStream::Done() {
  KT_RETURN_IF_ERROR(device_.Record(BufferOf(current_).used, StreamId{}));
  const size_t next = current_ + buffers_.size();
  ++current_;
  return next < stages_.size() ? Issue(next) : absl::OkStatus();
}

absl::Status ExpertStream::End() {
  KT_RETURN_IF_ERROR(device_.Synchronize(copies_));
  KT_RETURN_IF_ERROR(device_.Synchronize(StreamId{}));
  for (size_t i = 0; i < issued_; ++i) {
    const Stage& s = stages_[i];
    KT_ASSIGN_OR_RETURN(const double copy_ms, device_.ElapsedMs(s.begun, s.copied));
    times_.copy_ms += copy_ms;
    if (!s.was_wanted) continue;
    KT_ASSIGN_OR_RETURN(const double stall_ms, device_.ElapsedMs(s.wanted, s.copied));
    times_.stall_ms += std::max(0.0, stall_ms);
  }
  issued_ = 0;
  return absl::OkStatus();
}

}  // namespace kt
