// SPDX-License-Identifier: Apache-2.0
// How the device hands routed tokens to the CPU expert workers and gets partial sums back. Two
// transports, one contract: a shared-memory ring on the same machine, a gRPC stream elsewhere.
//
// Shapes   rows [tokens, width] bf16 or fp32 as the model's activations; ids, weights [tokens,
// top_k], id -1: not for an expert worker;
//          partial sums fp32 [tokens, width] of each worker, to be added in worker order
// Threads  one caller, but for Abort
// Errors   Submit and Wait: Aborted after Abort or when a worker has gone; DeadlineExceeded;
// Unavailable: a worker failed the task
#ifndef KT_GPU_WORKER_EXPERT_CLIENT_EXPERT_CHANNEL_H_
#define KT_GPU_WORKER_EXPERT_CLIENT_EXPERT_CHANNEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ipc/expert_ring.h"

namespace kt {

using ExpertTicket = uint32_t;

class ExpertChannel {
 public:
  struct Buffers {
    void* rows;
    int32_t* ids;
    float* weights;
  };
  virtual ~ExpertChannel() = default;

  // Rung around a step, so that workers know when to be quick.
  virtual void BeginStep() = 0;
  virtual void EndStep() = 0;
  // Where to put the next task; at most two tasks may be on their way.
  virtual Buffers Next() = 0;
  virtual absl::StatusOr<ExpertTicket> Submit(int layer, int tokens) = 0;
  virtual absl::Status Wait(ExpertTicket ticket, int64_t timeout_us) = 0;
  // Valid from Wait until the slot is used again (two Submits later).
  virtual const float* partial(int worker, ExpertTicket ticket) const = 0;
  virtual int workers() const = 0;
  virtual void Abort() = 0;
};

std::unique_ptr<ExpertChannel> MakeRingChannel(RingHost ring);

// One Forward stream to each target. `shape` fixes the sizes of the buffers, as for a ring.
absl::StatusOr<std::unique_ptr<ExpertChannel>> MakeGrpcChannel(
    const std::vector<std::string>& targets, const RingShape& shape);

}  // namespace kt

#endif  // KT_GPU_WORKER_EXPERT_CLIENT_EXPERT_CHANNEL_H_
