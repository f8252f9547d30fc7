// SPDX-License-Identifier: Apache-2.0
// What the front ends see of the running system: readiness, health, model and server facts.
#ifndef KT_COORDINATOR_RUNTIME_STATE_H_
#define KT_COORDINATOR_RUNTIME_STATE_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "common/model/model_config.h"
#include "coordinator/api/runtime_status.h"
#include "coordinator/placement/expert_stats.h"
#include "coordinator/scheduler/scheduler_loop.h"
#include "coordinator/workers/worker_links.h"
#include "proto/config.pb.h"

namespace kt {

// Thread-safe. The pointers outlive it.
class RuntimeState final : public api::RuntimeStatus {
 public:
  RuntimeState(const proto::RuntimeConfig& config, const ModelConfig& model,
               const WorkerLinks* links, const SchedulerLoop* loop, const ExpertStats* experts)
      : config_(config), model_(model), links_(links), loop_(loop), experts_(experts) {}

  void StartDraining() { draining_ = true; }
  void SetThrottledPeriods(int64_t periods) { throttled_periods_ = periods; }
  // What is less good than it could be, from the start and from the workers that are ready.
  std::vector<std::string> Warnings() const;

  // While workers are being replaced after the first start, requests are taken and wait.
  bool Ready() const override;
  Json Health() const override;
  Json ModelInfo() const override;
  Json ServerInfo() const override;

 private:
  const proto::RuntimeConfig config_;
  const ModelConfig model_;
  const WorkerLinks* const links_;
  const SchedulerLoop* const loop_;
  const ExpertStats* const experts_;
  std::atomic<bool> draining_{false};
  std::atomic<int64_t> throttled_periods_{0};
};

}  // namespace kt

#endif  // KT_COORDINATOR_RUNTIME_STATE_H_
