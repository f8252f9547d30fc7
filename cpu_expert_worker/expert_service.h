// SPDX-License-Identifier: Apache-2.0
// The serving side of the expert channel: a thread that answers ring slots, and the gRPC service
// with the same content.
#ifndef KT_CPU_EXPERT_WORKER_EXPERT_SERVICE_H_
#define KT_CPU_EXPERT_WORKER_EXPERT_SERVICE_H_

#include <atomic>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/ipc/expert_ring.h"
#include "proto/cpu_expert_worker.grpc.pb.h"

namespace kt {

// One task as both transports present it. results [tokens, hidden] fp32 are overwritten.
struct ExpertTask {
  int layer;
  int tokens;
  const void* rows;
  const int32_t* ids;
  const float* weights;
  float* results;
};

// Pure: the same task gives the same results. Called by one thread at a time.
using ExpertFunction = std::function<absl::Status(const ExpertTask&)>;
// Maps a segment of the node by name; at least `bytes` long.
using SegmentSource = std::function<absl::StatusOr<Segment>(const std::string& name, size_t bytes)>;
using SelfCheckFunction = std::function<proto::SelfCheckReply(bool all_layers)>;
// Run first on a thread that is going to call the ExpertFunction often.
using ThreadStart = std::function<void()>;

class ExpertService final : public proto::CpuExpertWorker::Service {
 public:
  // `shape` is what this worker can take (workers is ignored): a ring or message of another width
  // is refused.
  ExpertService(int index, const RingShape& shape, RingWaitPolicy policy, ExpertFunction function,
                SegmentSource segments, ThreadStart on_thread_start, SelfCheckFunction self_check);
  ~ExpertService() override;

  grpc::Status AttachRing(grpc::ServerContext*, const proto::AttachRingRequest*,
                          proto::AttachRingReply*) override;
  grpc::Status Forward(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<proto::ForwardReply, proto::ForwardRequest>*) override;
  grpc::Status GetStats(grpc::ServerContext*, const proto::StatsRequest*,
                        proto::StatsReply*) override;
  grpc::Status SelfCheck(grpc::ServerContext*, const proto::SelfCheckRequest*,
                         proto::SelfCheckReply*) override;

 private:
  absl::Status CheckShape(const RingShape& shape) const;
  void ServeRing(RingWorker ring);
  absl::Status Run(const ExpertTask& task);
  absl::Status Answer(const proto::ForwardRequest& request, std::string& results);

  const int index_;
  const RingShape shape_;
  const RingWaitPolicy policy_;
  const ExpertFunction function_;
  const SegmentSource segments_;
  const ThreadStart on_thread_start_;
  const SelfCheckFunction self_check_;

  absl::Mutex attach_mutex_;
  std::thread ring_thread_ ABSL_GUARDED_BY(attach_mutex_);
  std::atomic<bool> stop_ring_{false};

  absl::Mutex run_mutex_;
  proto::StatsReply stats_ ABSL_GUARDED_BY(run_mutex_);
};

}  // namespace kt

#endif  // KT_CPU_EXPERT_WORKER_EXPERT_SERVICE_H_
