// SPDX-License-Identifier: Apache-2.0
// The coordinator's connections to its workers: carries gRPC calls to the Registry as events,
// carries out its actions, and is the scheduler's way to the GPU workers.
#ifndef KT_COORDINATOR_WORKERS_WORKER_LINKS_H_
#define KT_COORDINATOR_WORKERS_WORKER_LINKS_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "coordinator/scheduler/scheduler_loop.h"
#include "coordinator/workers/registry.h"
#include "coordinator/workers/step_streams.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/cpu_expert_worker.grpc.pb.h"
#include "proto/diagnostics.pb.h"
#include "proto/gpu_worker.grpc.pb.h"
#include "proto/timeline.grpc.pb.h"

namespace kt {

// Thread-safe. gRPC threads call Register and Report, the scheduler's thread calls Send, one thread
// of its own attaches.
class WorkerLinks final : public proto::Coordinator::Service, public StepTransport {
 public:
  struct Callbacks {
    std::function<void()> on_serving;  // every time steps can run (again)
    std::function<void(const std::string& segment)> drop_segment;  // of the node
    std::function<void(const std::string& process)>
        kill;  // ends a process of this machine that hangs
  };
  WorkerLinks(const proto::RuntimeConfig& config, const RegistryConfig& registry,
              Callbacks callbacks);
  ~WorkerLinks() override;

  // Before any worker registers. `loop` outlives the links' last call to it, which is before Stop
  // returns.
  void Start(SchedulerLoop* loop);
  void Stop();

  bool serving() const;
  bool was_serving() const;  // at any time
  Json Health() const;
  std::vector<WorkerEndpoint> Ready() const;  // GPU workers, then expert workers, by index
  // Of every worker, one after the other. Unavailable: not all of them are ready.
  absl::StatusOr<proto::SelfCheckReplies> SelfCheck(const proto::SelfCheckRequest& request);

  // Of this process and of every worker that is ready, at once.
  absl::StatusOr<proto::TimelineReplies> RecordTimelines(const proto::TimelineRequest& request,
                                                         const std::function<bool()>& cancelled);

  grpc::Status Register(grpc::ServerContext*, const proto::RegisterRequest*,
                        proto::RegisterReply*) override;
  grpc::Status Report(grpc::ServerContext*, grpc::ServerReader<proto::WorkerReport>*,
                      proto::ReportReply*) override;
  void Send(const proto::StepPlan& plan) override;

 private:
  void Run();
  void CheckWatchdog();
  void StepEnded();
  void Carry(RegistryAction& action);
  absl::Status Attach(const AttachAction& action);
  void DetachExperts();
  void HoldSegments(const proto::AttachExpertsReply& reply);

  const proto::RuntimeConfig config_;
  const Callbacks callbacks_;
  SchedulerLoop* loop_ = nullptr;

  mutable absl::Mutex mutex_;
  Registry registry_ ABSL_GUARDED_BY(mutex_);
  std::deque<RegistryAction> actions_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<StepStreams> streams_ ABSL_GUARDED_BY(mutex_);
  // When the step in flight was sent; 0: none is. Nanoseconds of the steady clock.
  std::atomic<int64_t> step_sent_{0};
  // thread_ only
  std::string ring_, collective_;  // segments of the current generation
  uint64_t attached_ = 0;          // generation
  LayerwiseCosts costs_;           // of it
  std::thread thread_;
};

}  // namespace kt

#endif  // KT_COORDINATOR_WORKERS_WORKER_LINKS_H_
