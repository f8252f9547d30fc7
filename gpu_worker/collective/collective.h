// SPDX-License-Identifier: Apache-2.0
// What the ranks of a tensor-parallel group do together. `local` works between processes of one
// machine through shared memory.
//
// Order    every rank calls the same operations with the same sizes in the same order
// Bits     a sum is added in rank order and is the same on every rank
// Threads  one caller, but for Abort
// Errors   Aborted after Abort, by any rank; DeadlineExceeded: names the ranks that did not come;
//          DataLoss: ranks have called different things. After an error the group is of no more
//          use: it has been aborted, and a new one takes its place.
#ifndef KT_GPU_WORKER_COLLECTIVE_COLLECTIVE_H_
#define KT_GPU_WORKER_COLLECTIVE_COLLECTIVE_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ipc/segment.h"

namespace kt {

class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // x [n] becomes the sum of all ranks' x.
  virtual absl::Status AllReduce(float* x, int64_t n) = 0;
  // out: x of rank 0 [counts[0]], then that of rank 1, ... x may not be in out.
  virtual absl::Status AllGather(const float* x, std::span<const int64_t> counts, float* out) = 0;
  // x [bytes] becomes that of rank `root`.
  virtual absl::Status Broadcast(void* x, int64_t bytes, int root) = 0;
  // Until all ranks have come.
  virtual absl::Status Barrier() = 0;
  // Any thread: makes every rank's waiting and later calls fail with Aborted.
  virtual void Abort() = 0;
};

struct LocalGroup {
  int rank = 0;
  int size = 1;
  int64_t spin_us = 5;  // before a waiting rank sleeps (common/topology/wait_policy.h)
  int64_t timeout_us = 60'000'000;
};
inline constexpr int kLocalRanksMax = 8;

// A segment of these bytes, zeroed when it is new, is all that the ranks share. Its layout stands
// in docs/formats/collective.md.
size_t LocalGroupBytes(int size);
// Rank 0 makes the group in a new segment; the others join it after that. FailedPrecondition: the
// segment has a group already (rank 0), or none (others). DataLoss, InvalidArgument: what is there
// is not a group of this size and layout. Ranks that are threads of one process may share a
// mapping.
absl::StatusOr<std::unique_ptr<Collective>> JoinLocalGroup(std::shared_ptr<const Segment> segment,
                                                           const LocalGroup& group);

}  // namespace kt

#endif  // KT_GPU_WORKER_COLLECTIVE_COLLECTIVE_H_
