// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "common/base/status.h"
#include "common/ipc/futex_event.h"
#include "gpu_worker/collective/collective.h"

namespace kt {
namespace {

constexpr uint32_t kMagic = 0x4c4f434b;  // "KCOL"
constexpr uint32_t kVersion = 1;
constexpr uint32_t kAborted = 0x80000000u;  // in `phase`; phases count below it
constexpr int64_t kChunkBytes = 1 << 20;    // what a rank shows the others in one phase
// Up to so many bytes every rank adds up everything, which takes one phase; beyond, each adds up
// its part and shows the sum, which takes two and reads less.
constexpr int64_t kOnePhaseBytes = 64 << 10;

enum class Op : uint32_t { kAllReduce = 1, kAllGather, kBroadcast, kBarrier };

// What a rank came to a phase with; checked by the others.
struct alignas(64) Arrival {
  std::atomic<uint32_t> phase;
  Op op;
  int64_t bytes;
};

struct Header {
  uint32_t magic;
  uint32_t version;
  int32_t size;
  int32_t reserved;
  int64_t chunk_bytes;
  uint64_t bytes;
  alignas(64) std::atomic<uint32_t> arrived;  // ranks in the phase that has not ended
  FutexEvent phase;                           // number of the last one that ended, or kAborted
  Arrival arrivals[2][kLocalRanksMax];        // by parity of the phase
};
static_assert(sizeof(Header) == 192 + 2 * 64 * kLocalRanksMax);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// A phase: a rank writes its buffer of this parity and its arrival, and comes; the last one to come
// ends the phase. Then all read. A buffer is written again two phases later, when every rank has
// come to the phase between, so has read it.
class LocalCollective final : public Collective {
 public:
  LocalCollective(std::shared_ptr<const Segment> segment, const LocalGroup& group)
      : segment_(std::move(segment)), group_(group) {}

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

  absl::Status AllReduce(float* x, int64_t n) override {
    const bool one_phase = n * kFloat <= kOnePhaseBytes;
    for (int64_t at = 0; at < n; at += kChunkBytes / kFloat) {
      const int64_t count = std::min(n - at, kChunkBytes / kFloat);
      KT_RETURN_IF_ERROR(one_phase ? ReduceWhole(x + at, count) : ReduceParts(x + at, count));
    }
    return absl::OkStatus();
  }

  absl::Status AllGather(const float* x, std::span<const int64_t> counts, float* out) override {
    const int64_t longest = *std::max_element(counts.begin(), counts.end());
    for (int64_t at = 0; at < longest; at += kChunkBytes / kFloat) {
      std::array<int64_t, kLocalRanksMax> bytes{};
      for (int r = 0; r < size(); ++r)
        bytes[r] = std::clamp<int64_t>((counts[r] - at) * kFloat, 0, kChunkBytes);
      if (bytes[rank()] > 0) std::memcpy(Own(), x + at, bytes[rank()]);
      KT_RETURN_IF_ERROR(Exchange(Op::kAllGather, bytes));
      float* to = out + at;
      for (int r = 0; r < size(); to += counts[r++]) {
        if (bytes[r] > 0) std::memcpy(to, Shown(r), bytes[r]);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Broadcast(void* x, int64_t bytes, int root) override {
    auto* to = static_cast<uint8_t*>(x);
    for (int64_t at = 0; at < bytes; at += kChunkBytes) {
      std::array<int64_t, kLocalRanksMax> shown{};
      shown[root] = std::min(bytes - at, kChunkBytes);
      if (rank() == root) std::memcpy(Own(), to + at, shown[root]);
      KT_RETURN_IF_ERROR(Exchange(Op::kBroadcast, shown));
      if (rank() != root) std::memcpy(to + at, Shown(root), shown[root]);
    }
    return absl::OkStatus();
  }

  absl::Status Barrier() override { return Exchange(Op::kBarrier, {}); }

  void Abort() override { header().phase.Set(kAborted); }

 private:
  static constexpr int64_t kFloat = sizeof(float);
  using Bytes = std::array<int64_t, kLocalRanksMax>;

  Header& header() const { return *reinterpret_cast<Header*>(segment_->data()); }
  uint8_t* Buffer(uint32_t phase, int rank) const {
    return segment_->data() + sizeof(Header) + (phase % 2 * size() + rank) * kChunkBytes;
  }
  uint32_t Next() const { return (phase_ + 1) & ~kAborted; }
  // This rank's buffer of the next phase, and everyone's of the last one.
  uint8_t* Own() const { return Buffer(Next(), rank()); }
  const uint8_t* Shown(int rank) const { return Buffer(phase_, rank); }
  const float* Floats(int rank) const { return reinterpret_cast<const float*>(Shown(rank)); }

  absl::Status ReduceWhole(float* x, int64_t n) {
    std::memcpy(Own(), x, n * kFloat);
    KT_RETURN_IF_ERROR(Exchange(Op::kAllReduce, All(n * kFloat)));
    Sum(0, n, x);
    return absl::OkStatus();
  }

  absl::Status ReduceParts(float* x, int64_t n) {
    std::memcpy(Own(), x, n * kFloat);
    KT_RETURN_IF_ERROR(Exchange(Op::kAllReduce, All(n * kFloat)));
    auto begin = [&](int r) { return n * r / size(); };
    Bytes parts{};
    for (int r = 0; r < size(); ++r) parts[r] = (begin(r + 1) - begin(r)) * kFloat;
    Sum(begin(rank()), begin(rank() + 1), reinterpret_cast<float*>(Own()));
    KT_RETURN_IF_ERROR(Exchange(Op::kAllReduce, parts));
    for (int r = 0; r < size(); ++r) std::memcpy(x + begin(r), Shown(r), parts[r]);
    return absl::OkStatus();
  }

  // out [end - begin]: the sums of what was shown.
  void Sum(int64_t begin, int64_t end, float* out) const {
    std::memcpy(out, Floats(0) + begin, (end - begin) * kFloat);
    for (int r = 1; r < size(); ++r) {
      const float* part = Floats(r) + begin;
      for (int64_t i = 0; i < end - begin; ++i) out[i] += part[i];
    }
  }

  Bytes All(int64_t bytes) const {
    Bytes all{};
    std::fill_n(all.begin(), size(), bytes);
    return all;
  }

  // One phase; `bytes` of each rank's buffer are shown.
  absl::Status Exchange(Op op, const Bytes& bytes) {
    Header& h = header();
    const uint32_t old = phase_, phase = Next();
    Arrival& own = h.arrivals[phase % 2][rank()];
    own.op = op;
    own.bytes = bytes[rank()];
    own.phase.store(phase, std::memory_order_relaxed);
    if (h.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size())) {
      h.arrived.store(0, std::memory_order_relaxed);
      h.phase.Advance(old, phase);
    }
    uint32_t now = h.phase.WaitWhile(old, group_.spin_us, group_.timeout_us);
    if (now == old) {
      const std::vector<int> missing = Missing(phase);
      if (h.phase.Advance(old, kAborted)) {
        return DeadlineExceeded("collective: ranks {} did not come within {} ms",
                                fmt::join(missing, ", "), group_.timeout_us / 1000);
      }
      now = h.phase.Load();  // the last one came at the last moment
    }
    if (now != phase) return Aborted("collective: the group of {} ranks has ended", size());
    for (int r = 0; r < size(); ++r) {
      const Arrival& a = h.arrivals[phase % 2][r];
      const uint32_t came_to = a.phase.load(std::memory_order_relaxed);
      if (came_to == phase && a.op == op && a.bytes == bytes[r]) continue;
      Abort();
      return DataLoss(
          "collective: rank {} came to phase {} with operation {} of {} bytes, rank {} to phase {} "
          "with {} of {}",
          r, came_to, static_cast<uint32_t>(a.op), a.bytes, rank(), phase,
          static_cast<uint32_t>(op), bytes[r]);
    }
    phase_ = phase;
    return absl::OkStatus();
  }

  std::vector<int> Missing(uint32_t phase) const {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) {
      if (header().arrivals[phase % 2][r].phase.load(std::memory_order_relaxed) != phase)
        ranks.push_back(r);
    }
    return ranks;
  }

  const std::shared_ptr<const Segment> segment_;
  const LocalGroup group_;
  uint32_t phase_ = 0;  // the last one that ended
};

}  // namespace

size_t LocalGroupBytes(int size) {
  return sizeof(Header) + 2 * static_cast<size_t>(size) * kChunkBytes;
}

absl::StatusOr<std::unique_ptr<Collective>> JoinLocalGroup(std::shared_ptr<const Segment> segment,
                                                           const LocalGroup& group) {
  if (group.size < 1 || group.size > kLocalRanksMax || group.rank < 0 || group.rank >= group.size)
    return InvalidArgument("collective: rank {} of {}, at most {}", group.rank, group.size,
                           kLocalRanksMax);
  const size_t bytes = LocalGroupBytes(group.size);
  if (segment->size() < bytes) {
    return InvalidArgument("collective: a segment of {} bytes, {} ranks need {}", segment->size(),
                           group.size, bytes);
  }
  Header& h = *reinterpret_cast<Header*>(segment->data());
  std::atomic_ref<uint32_t> magic(h.magic);
  if (group.rank == 0) {
    if (magic.load(std::memory_order_acquire) != 0)
      return FailedPrecondition("collective: the segment is in use by another group");
    h.version = kVersion;
    h.size = group.size;
    h.chunk_bytes = kChunkBytes;
    h.bytes = bytes;
    magic.store(kMagic, std::memory_order_release);
  } else {
    const uint32_t found = magic.load(std::memory_order_acquire);
    if (found == 0) return FailedPrecondition("collective: rank 0 has not made the group yet");
    if (found != kMagic) return DataLoss("collective: magic {:#x}, expected {:#x}", found, kMagic);
    if (h.version != kVersion || h.size != group.size || h.chunk_bytes != kChunkBytes ||
        h.bytes != bytes) {
      return DataLoss(
          "collective: a group of {} ranks, layout {}, chunks of {} and {} bytes; expected {} "
          "ranks, layout {}, {} and {}",
          h.size, h.version, h.chunk_bytes, h.bytes, group.size, kVersion, kChunkBytes, bytes);
    }
  }
  return std::unique_ptr<Collective>(std::make_unique<LocalCollective>(std::move(segment), group));
}

}  // namespace kt
