// SPDX-License-Identifier: Apache-2.0
#include "common/ipc/expert_ring.h"

#include <cstddef>
#include <new>

#include "common/base/status.h"

namespace kt {

struct RingHeader {
  uint32_t magic;
  uint32_t version;
  uint64_t bytes;
  int32_t workers;
  int32_t tokens_max;
  int32_t hidden;
  int32_t top_k;
  int32_t activation_bytes;
  int32_t slots;
  FutexEvent doorbell;     // last submitted sequence, or kRingAbort
  FutexEvent step_active;  // 1 between BeginStep and EndStep
};
static_assert(sizeof(RingHeader) == 192 && offsetof(RingHeader, doorbell) == 64);

struct RingSlot {
  uint32_t sequence;
  int32_t layer;
  int32_t tokens;
  int32_t reserved[13];
};
static_assert(sizeof(RingSlot) == 64);

struct RingWorkerBlock {
  FutexEvent completion[kRingSlots];  // sequence last answered in the slot
  uint32_t status[kRingSlots];        // absl code of that answer
  uint32_t reserved[16 - kRingSlots];
};
static_assert(sizeof(RingWorkerBlock) == 64 * (kRingSlots + 1));

namespace {

constexpr size_t Align(size_t x) { return (x + 63) / 64 * 64; }

// Offsets of everything, from the shape alone.
struct RingOffsets {
  explicit RingOffsets(const RingShape& s) {
    size_t tokens = static_cast<size_t>(s.tokens_max);
    rows = sizeof(RingSlot);
    ids = Align(rows +
                tokens * static_cast<size_t>(s.hidden) * static_cast<size_t>(s.activation_bytes));
    weights = Align(ids + tokens * static_cast<size_t>(s.top_k) * 4);
    slot_stride = Align(weights + tokens * static_cast<size_t>(s.top_k) * 4);
    result_bytes = Align(tokens * static_cast<size_t>(s.hidden) * 4);
    worker_stride = sizeof(RingWorkerBlock) + kRingSlots * result_bytes;
    workers = sizeof(RingHeader) + kRingSlots * slot_stride;
    total = workers + static_cast<size_t>(s.workers) * worker_stride;
  }
  size_t rows, ids, weights, slot_stride, result_bytes, worker_stride, workers, total;
};

RingHeader* Header(const Segment& s) { return reinterpret_cast<RingHeader*>(s.data()); }

uint8_t* SlotBase(const Segment& s, const RingOffsets& o, uint32_t sequence) {
  return s.data() + sizeof(RingHeader) + sequence % kRingSlots * o.slot_stride;
}

RingWorkerBlock* Worker(const Segment& s, const RingOffsets& o, int worker) {
  return reinterpret_cast<RingWorkerBlock*>(s.data() + o.workers +
                                            static_cast<size_t>(worker) * o.worker_stride);
}

float* Results(const Segment& s, const RingOffsets& o, int worker, uint32_t sequence) {
  return reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(Worker(s, o, worker)) +
                                  sizeof(RingWorkerBlock) + sequence % kRingSlots * o.result_bytes);
}

RingTask TaskAt(const Segment& s, const RingOffsets& o, uint32_t sequence) {
  uint8_t* base = SlotBase(s, o, sequence);
  RingTask task;
  task.sequence = sequence;
  task.rows = base + o.rows;
  task.ids = reinterpret_cast<int32_t*>(base + o.ids);
  task.weights = reinterpret_cast<float*>(base + o.weights);
  return task;
}

}  // namespace

absl::Status CheckRingShape(const RingShape& s) {
  auto in = [](int x, int lo, int hi) { return x >= lo && x <= hi; };
  if (!in(s.workers, 1, kRingWorkersMax) || !in(s.tokens_max, 1, 1 << 20) ||
      !in(s.hidden, 1, 1 << 17) || !in(s.top_k, 1, 1024) ||
      (s.activation_bytes != 2 && s.activation_bytes != 4)) {
    return InvalidArgument(
        "expert ring: shape out of range: {} workers, {} tokens, hidden {}, top-k {}, {} bytes an "
        "activation",
        s.workers, s.tokens_max, s.hidden, s.top_k, s.activation_bytes);
  }
  return absl::OkStatus();
}

size_t RingBytes(const RingShape& shape) { return RingOffsets(shape).total; }

absl::StatusOr<RingShape> ReadRingShape(const uint8_t* data, size_t bytes) {
  if (bytes < sizeof(RingHeader))
    return DataLoss("expert ring: segment of {} bytes is too small for a header", bytes);
  const auto* h = reinterpret_cast<const RingHeader*>(data);
  if (h->magic != kRingMagic)
    return DataLoss("expert ring: magic {:#x}, expected {:#x}", h->magic, kRingMagic);
  if (h->version != kRingVersion || h->slots != kRingSlots) {
    return FailedPrecondition(
        "expert ring: layout version {} with {} slots, this build has {} with {}", h->version,
        h->slots, kRingVersion, kRingSlots);
  }
  RingShape shape{h->workers, h->tokens_max, h->hidden, h->top_k, h->activation_bytes};
  KT_RETURN_IF_ERROR(CheckRingShape(shape));
  if (RingBytes(shape) != h->bytes || h->bytes > bytes) {
    return DataLoss("expert ring: header says {} bytes, its shape needs {} and the segment has {}",
                    h->bytes, RingBytes(shape), bytes);
  }
  return shape;
}

// ---- host

RingHost::RingHost(Segment segment, const RingShape& shape, RingWaitPolicy policy)
    : segment_(std::move(segment)), shape_(shape), policy_(policy) {}

absl::StatusOr<RingHost> RingHost::Create(Segment segment, const RingShape& shape,
                                          RingWaitPolicy policy) {
  KT_RETURN_IF_ERROR(CheckRingShape(shape));
  if (segment.size() < RingBytes(shape)) {
    return InvalidArgument("expert ring: segment has {} bytes, {} needed", segment.size(),
                           RingBytes(shape));
  }
  RingHeader* h = Header(segment);
  if (h->magic != 0)
    return FailedPrecondition("expert ring: the segment is in use by another ring");
  h->version = kRingVersion;
  h->bytes = RingBytes(shape);
  h->workers = shape.workers;
  h->tokens_max = shape.tokens_max;
  h->hidden = shape.hidden;
  h->top_k = shape.top_k;
  h->activation_bytes = shape.activation_bytes;
  h->slots = kRingSlots;
  std::atomic_ref<uint32_t>(h->magic).store(kRingMagic, std::memory_order_release);
  return RingHost(std::move(segment), shape, policy);
}

void RingHost::BeginStep() { Header(segment_)->step_active.Set(1); }
void RingHost::EndStep() { Header(segment_)->step_active.Set(0); }

RingTask RingHost::Next() { return TaskAt(segment_, RingOffsets(shape_), submitted_ + 1); }

uint32_t RingHost::Submit(int layer, int tokens) {
  RingOffsets o(shape_);
  uint32_t sequence = ++submitted_;
  auto* slot = reinterpret_cast<RingSlot*>(SlotBase(segment_, o, sequence));
  slot->sequence = sequence;
  slot->layer = layer;
  slot->tokens = tokens;
  FutexEvent& doorbell = Header(segment_)->doorbell;
  if (doorbell.Load() != kRingAbort) doorbell.Set(sequence);
  return sequence;
}

absl::Status RingHost::Wait(uint32_t sequence, int64_t timeout_us) {
  RingOffsets o(shape_);
  int64_t deadline = NowUs() + timeout_us;
  for (int w = 0; w < shape_.workers; ++w) {
    RingWorkerBlock* block = Worker(segment_, o, w);
    FutexEvent& done = block->completion[sequence % kRingSlots];
    // The word holds the slot's previous sequence until the answer comes; Abort wakes us by setting
    // it.
    for (uint32_t seen = done.Load(); seen != sequence; seen = done.Load()) {
      if (seen == kRingAbort)
        return Aborted("expert ring: ended while task {} was on its way", sequence);
      int64_t left = deadline - NowUs();
      if (left <= 0)
        return DeadlineExceeded("expert ring: worker {} did not answer task {} within {} ms", w,
                                sequence, timeout_us / 1000);
      done.WaitWhile(seen, policy_.spin_us, left);
    }
    if (block->status[sequence % kRingSlots] != 0) {
      return Unavailable("expert ring: worker {} failed task {} with code {}", w, sequence,
                         block->status[sequence % kRingSlots]);
    }
  }
  return absl::OkStatus();
}

const float* RingHost::results(int worker, uint32_t sequence) const {
  return Results(segment_, RingOffsets(shape_), worker, sequence);
}

void RingHost::Abort() {
  RingOffsets o(shape_);
  Header(segment_)->doorbell.Set(kRingAbort);
  for (int w = 0; w < shape_.workers; ++w) {
    for (FutexEvent& done : Worker(segment_, o, w)->completion) done.Set(kRingAbort);
  }
}

// ---- worker

RingWorker::RingWorker(Segment segment, const RingShape& shape, int worker, RingWaitPolicy policy)
    : segment_(std::move(segment)), shape_(shape), worker_(worker), policy_(policy) {}

absl::StatusOr<RingWorker> RingWorker::Attach(Segment segment, int worker, RingWaitPolicy policy) {
  KT_ASSIGN_OR_RETURN(RingShape shape, ReadRingShape(segment.data(), segment.size()));
  if (worker < 0 || worker >= shape.workers) {
    return InvalidArgument("expert ring: worker {} attached to a ring of {} workers", worker,
                           shape.workers);
  }
  return RingWorker(std::move(segment), shape, worker, policy);
}

absl::StatusOr<std::optional<RingTask>> RingWorker::Next(int64_t timeout_us) {
  RingHeader* h = Header(segment_);
  int64_t deadline = NowUs() + timeout_us;
  uint32_t rung = h->doorbell.Load();
  while (rung == done_) {
    int64_t left = deadline - NowUs();
    if (left <= 0) return std::optional<RingTask>();
    // Between steps there is nothing to be quick for.
    int64_t spin_us = h->step_active.Load() != 0 ? policy_.spin_us : 0;
    rung = h->doorbell.WaitWhile(done_, spin_us, left);
  }
  if (rung == kRingAbort) return Aborted("expert ring: ended by the host");
  if (rung - done_ > kRingSlots)
    return DataLoss("expert ring: doorbell jumped from {} to {}", done_, rung);
  uint32_t sequence = done_ + 1;
  RingOffsets o(shape_);
  // Copied once: the host must not be able to change what was checked.
  const auto* shared = reinterpret_cast<const volatile RingSlot*>(SlotBase(segment_, o, sequence));
  struct {
    uint32_t sequence;
    int32_t layer, tokens;
  } slot{shared->sequence, shared->layer, shared->tokens};
  if (slot.sequence != sequence || slot.tokens < 1 || slot.tokens > shape_.tokens_max ||
      slot.layer < 0) {
    return DataLoss(
        "expert ring: slot of task {} holds sequence {}, layer {}, {} tokens (at most {})",
        sequence, slot.sequence, slot.layer, slot.tokens, shape_.tokens_max);
  }
  RingTask task = TaskAt(segment_, o, sequence);
  task.layer = slot.layer;
  task.tokens = slot.tokens;
  task.results = Results(segment_, o, worker_, sequence);
  return std::optional<RingTask>(task);
}

void RingWorker::Complete(const RingTask& task, absl::StatusCode code) {
  RingWorkerBlock* block = Worker(segment_, RingOffsets(shape_), worker_);
  block->status[task.sequence % kRingSlots] = static_cast<uint32_t>(code);
  FutexEvent& done = block->completion[task.sequence % kRingSlots];
  if (done.Load() != kRingAbort) done.Set(task.sequence);
  done_ = task.sequence;
}

}  // namespace kt
