// SPDX-License-Identifier: Apache-2.0
#ifndef KT_GPU_WORKER_WORKER_SERVICE_H_
#define KT_GPU_WORKER_WORKER_SERVICE_H_

#include <functional>

#include "absl/synchronization/mutex.h"
#include "gpu_worker/engine.h"
#include "proto/gpu_worker.grpc.pb.h"
#include "worker/self_check.h"

namespace kt {

// gRPC face of one rank: thin. Steps run on the thread of the RunSteps call.
class WorkerService final : public proto::GpuWorker::Service {
 public:
  // Maps a segment of the node by name.
  using SegmentSource =
      std::function<absl::StatusOr<Segment>(const std::string& name, size_t bytes)>;
  // Maps the experts of all workers; null: the engine has no use for them.
  using ArenaSource = std::function<absl::StatusOr<std::shared_ptr<const ExpertArenas>>(
      const proto::AttachExpertsRequest&)>;
  using SelfCheckFunction =
      std::function<absl::StatusOr<std::vector<SelfCheckRow>>(bool all_layers)>;
  // `ring_shape` has the workers, width and tokens of this system's expert tasks, `group` this rank
  // among those that share the model. `measure`: what layerwise steps cost, at every attachment.
  // `on_step_thread` runs first on every thread that is going to run steps.
  WorkerService(Engine* engine, const RingShape& ring_shape, RingWaitPolicy policy,
                const LocalGroup& group, SegmentSource segments, ArenaSource arenas, bool measure,
                std::function<void()> on_step_thread, SelfCheckFunction self_check)
      : engine_(engine),
        ring_shape_(ring_shape),
        policy_(policy),
        group_(group),
        segments_(std::move(segments)),
        arenas_(std::move(arenas)),
        measure_(measure),
        on_step_thread_(std::move(on_step_thread)),
        self_check_(std::move(self_check)) {}

  grpc::Status AttachExperts(grpc::ServerContext*, const proto::AttachExpertsRequest*,
                             proto::AttachExpertsReply*) override;
  grpc::Status DetachExperts(grpc::ServerContext*, const proto::DetachExpertsRequest*,
                             proto::DetachExpertsReply*) override;
  grpc::Status RunSteps(grpc::ServerContext*,
                        grpc::ServerReaderWriter<proto::StepResult, proto::StepPlan>*) override;
  grpc::Status SelfCheck(grpc::ServerContext*, const proto::SelfCheckRequest*,
                         proto::SelfCheckReply*) override;

 private:
  absl::Status Attach(const proto::AttachExpertsRequest& request, proto::AttachExpertsReply& reply);
  absl::Status AttachChannel(const proto::AttachExpertsRequest& request,
                             proto::AttachExpertsReply& reply);
  absl::StatusOr<proto::LayerwiseFacts> SetArenas(std::shared_ptr<const ExpertArenas> arenas);
  absl::Status AttachExpertWorkers(const proto::AttachExpertsRequest& request,
                                   proto::AttachExpertsReply& reply);
  absl::Status JoinGroup(uint64_t generation, proto::AttachExpertsReply& reply);
  // Makes `context` the stream whose plans are run; the one before ends.
  void SetStream(grpc::ServerContext* context);
  bool IsStream(grpc::ServerContext* context);

  Engine* const engine_;
  const RingShape ring_shape_;
  const RingWaitPolicy policy_;
  const LocalGroup group_;
  const SegmentSource segments_;
  const ArenaSource arenas_;
  const bool measure_;
  const std::function<void()> on_step_thread_;
  const SelfCheckFunction self_check_;

  absl::Mutex attach_mutex_;
  uint64_t generation_ ABSL_GUARDED_BY(attach_mutex_) = 0;
  proto::AttachExpertsReply last_reply_ ABSL_GUARDED_BY(attach_mutex_);

  absl::Mutex stream_mutex_;  // guards which stream is the current one
  grpc::ServerContext* current_ ABSL_GUARDED_BY(stream_mutex_) = nullptr;
  absl::Mutex step_mutex_;  // held while a step runs
};

}  // namespace kt

#endif  // KT_GPU_WORKER_WORKER_SERVICE_H_
