// SPDX-License-Identifier: Apache-2.0
// The expert ring: how rank 0 of the device hands token rows to the CPU expert workers of the same
// machine and gets partial sums back, through one shared segment. Byte layout and reasons:
// docs/formats/expert_ring.md.
//
//   header | slot 0..S-1: descriptor, rows, ids, weights | worker 0..W-1: completion words, then
//   results of slot 0..S-1
//
// Invariants
//   submitted - S < oldest sequence not yet waited for <= submitted      (sequence n lives in slot
//   n % S; the host waits before reuse) a slot's descriptor, rows, ids and weights are written by
//   the host only, before it rings `doorbell` with the slot's sequence results of (worker, slot)
//   are written by that worker only, before it sets its completion word of the slot to the sequence
//   sequences count from 1; kRingAbort in the doorbell ends the ring for good; a ring is never
//   attached twice by different incarnations: a replaced worker gets a new segment, so late writes
//   of its predecessor land where nobody reads
// Everything a worker reads from the segment is checked like network input: sizes against the
// mapping, layer and tokens against limits.
#ifndef KT_COMMON_IPC_EXPERT_RING_H_
#define KT_COMMON_IPC_EXPERT_RING_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ipc/futex_event.h"
#include "common/ipc/segment.h"

namespace kt {

inline constexpr uint32_t kRingMagic = 0x474e524b;  // "KRNG"
inline constexpr uint32_t kRingVersion = 1;
inline constexpr uint32_t kRingAbort = 0xffffffffu;
inline constexpr int kRingSlots = 2;
inline constexpr int kRingWorkersMax = 64;

// What fixes the size of a ring.
struct RingShape {
  int workers = 1;
  int tokens_max = 0;  // rows of one task
  int hidden = 0;      // width of a row
  int top_k = 0;
  int activation_bytes = 2;  // 2: bf16, 4: fp32
};

absl::Status CheckRingShape(const RingShape& shape);
size_t RingBytes(const RingShape& shape);

// How the two sides wait (common/topology/wait_policy.h). Spinning is worth it only while a step
// runs and only where the waiter has a core to burn.
struct RingWaitPolicy {
  int64_t spin_us = 50;
};

struct RingSlot;
struct RingHeader;
struct RingWorkerBlock;

// Pointers into one slot.
struct RingTask {
  uint32_t sequence = 0;
  int layer = 0;
  int tokens = 0;
  void* rows = nullptr;      // [tokens, hidden] bf16 or fp32
  int32_t* ids = nullptr;    // [tokens, top_k]
  float* weights = nullptr;  // [tokens, top_k]
  float* results = nullptr;  // worker side: [tokens, hidden], its partial sums
};

// Checks header against mapping and shape; used by both sides and by the fuzz target.
absl::StatusOr<RingShape> ReadRingShape(const uint8_t* data, size_t bytes);

// Host side. One thread, but for Abort.
class RingHost {
 public:
  // Initialises the segment, which must have RingBytes(shape) bytes and be fresh (zeroed).
  static absl::StatusOr<RingHost> Create(Segment segment, const RingShape& shape,
                                         RingWaitPolicy policy);

  // Rung around a step: between the two, workers wait spinning as their policy allows.
  void BeginStep();
  void EndStep();

  // The slot of the next task, free to be filled. At most kRingSlots tasks are on their way: Wait
  // for the older one first.
  RingTask Next();
  // Publishes the slot that Next returned. 1 <= tokens <= tokens_max.
  uint32_t Submit(int layer, int tokens);
  // Until every worker has answered. Unavailable: a worker answered with an error;
  // DeadlineExceeded: names the worker; Aborted: see Abort.
  absl::Status Wait(uint32_t sequence, int64_t timeout_us);
  const float* results(int worker, uint32_t sequence) const;

  // From any thread: makes waiting and later calls fail with Aborted, and tells the workers that
  // the ring has ended.
  void Abort();
  const RingShape& shape() const { return shape_; }

 private:
  RingHost(Segment segment, const RingShape& shape, RingWaitPolicy policy);
  Segment segment_;
  RingShape shape_;
  RingWaitPolicy policy_;
  uint32_t submitted_ = 0;
};

// Worker side. Next and Complete are called by one thread; Stop by any.
class RingWorker {
 public:
  static absl::StatusOr<RingWorker> Attach(Segment segment, int worker, RingWaitPolicy policy);

  // The next task, or nothing after `timeout_us` without one. Aborted: the ring has ended;
  // DataLoss: the segment's content is not valid.
  absl::StatusOr<std::optional<RingTask>> Next(int64_t timeout_us);
  void Complete(const RingTask& task, absl::StatusCode code);
  const RingShape& shape() const { return shape_; }

 private:
  RingWorker(Segment segment, const RingShape& shape, int worker, RingWaitPolicy policy);
  Segment segment_;
  RingShape shape_;
  int worker_;
  RingWaitPolicy policy_;
  uint32_t done_ = 0;
};

}  // namespace kt

#endif  // KT_COMMON_IPC_EXPERT_RING_H_
