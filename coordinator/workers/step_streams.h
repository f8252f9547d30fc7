// SPDX-License-Identifier: Apache-2.0
// A RunSteps call to every rank: all get every plan, and a step is done when all have answered.
#ifndef KT_COORDINATOR_WORKERS_STEP_STREAMS_H_
#define KT_COORDINATOR_WORKERS_STEP_STREAMS_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "proto/gpu_worker.grpc.pb.h"

namespace kt {

// Thread-safe. One step at a time. Results are read by a thread for each rank, which the callbacks
// run on; the destructor ends the calls and waits for these threads.
class StepStreams {
 public:
  struct Callbacks {
    // All ranks have answered: the result of rank 0.
    std::function<void(proto::StepResult)> done;
    // Of several ranks one has failed, and with it their collective: once, no step can follow.
    std::function<void(const std::string& error)> failed;
  };
  StepStreams(const std::vector<std::string>& addresses, Callbacks callbacks);
  ~StepStreams();

  // A plan that cannot be sent is lost with its worker, whose end is noticed elsewhere.
  void Send(const proto::StepPlan& plan);
  // Ranks that have not answered the last step.
  std::vector<int> Missing() const;

 private:
  struct Rank {
    std::unique_ptr<proto::GpuWorker::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<proto::StepPlan, proto::StepResult>> stream;
    std::thread reader;
    bool answered = true;  // the step sent last; guarded by mutex_
  };
  void OnResult(size_t rank, proto::StepResult result);

  const Callbacks callbacks_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  mutable absl::Mutex mutex_;
  uint64_t step_ ABSL_GUARDED_BY(mutex_) = 0;        // sent last
  proto::StepResult first_ ABSL_GUARDED_BY(mutex_);  // rank 0's answer to it
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kt

#endif  // KT_COORDINATOR_WORKERS_STEP_STREAMS_H_
