// SPDX-License-Identifier: Apache-2.0
// Runs StepPlans: cache copies, forward pass, logits, sampling, captures. With tensor parallelism
// every rank runs every step; rank 0 alone samples, captures and counts. One thread but for
// SetChannel and SetGroup.
#ifndef KT_GPU_WORKER_ENGINE_H_
#define KT_GPU_WORKER_ENGINE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "gpu_worker/forward.h"
#include "proto/gpu_worker.pb.h"
#include "proto/step.pb.h"

namespace kt {

class Engine {
 public:
  struct Parts {
    const ModelConfig* config;
    Device* device;
    Ops* ops;
    const DenseWeights* dense;
    const KvPool* cache;
    Forward* forward;
    ResidentExperts* residents;
    bool residents_change;  // in layerwise steps, where the plan has heat
    ExpertStream* stream;   // null: no layerwise steps
    StepLimits limits;
    int rank = 0, ranks = 1;
  };
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const Parts& parts);
  static size_t WorkspaceBytes(const ModelConfig& config, int ranks, int activation_bytes);

  // Never fails as a call: what went wrong is in the result.
  proto::StepResult RunStep(const proto::StepPlan& plan);

  // Between steps. Makes these the arenas that layerwise steps copy from, puts the residents back
  // to where they were at start if they change, and, with `measure`, measures what a step costs.
  // Null arenas: those of workers that have gone are let go of.
  absl::StatusOr<proto::LayerwiseFacts> SetArenas(std::shared_ptr<const ExpertArenas> arenas,
                                                  bool measure);

  // Replaces the way to the expert workers. A step that waits on the old one fails with Aborted.
  // Any thread.
  void SetChannel(std::shared_ptr<ExpertChannel> channel);
  // The same for the way to the other ranks. A step that fails aborts its group.
  void SetGroup(std::shared_ptr<Collective> group);

 private:
  explicit Engine(const Parts& parts) : p_(parts) {}
  absl::Status Run(const proto::StepPlan& plan, ExpertChannel* channel, Collective* group,
                   proto::StepResult& result);
  absl::Status RunForward(const proto::StepPlan& plan, proto::StepMode mode, ExpertChannel* channel,
                          Collective* group, const ForwardTaps& taps);
  void SetTimings(proto::StepTimings& timings) const;
  ForwardTaps MakeTaps(const proto::StepPlan& plan, proto::StepResult& result);
  absl::Status Head(const proto::StepPlan& plan, Collective* group, proto::StepResult& result);
  // logits_ [rows, vocab] of normed_; of a group on rank 0 alone.
  absl::Status Logits(int rows, Collective* group);

  Parts p_;
  StepInput input_;
  DeviceBuffer memory_;
  void *picked_ = nullptr, *normed_ = nullptr;
  float* logits_ = nullptr;
  float *own_logits_ = nullptr, *rank_logits_ = nullptr;  // of a group: this rank's, all by rank
  absl::Mutex mutex_;
  std::shared_ptr<ExpertChannel> channel_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Collective> group_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kt

#endif  // KT_GPU_WORKER_ENGINE_H_
