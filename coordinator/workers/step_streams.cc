// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/step_streams.h"

#include <pthread.h>

#include <algorithm>

#include "common/base/status.h"
#include "common/rpc/server_runner.h"

namespace kt {

StepStreams::StepStreams(const std::vector<std::string>& addresses, Callbacks callbacks)
    : callbacks_(std::move(callbacks)) {
  for (const std::string& address : addresses) {
    Rank& rank = *ranks_.emplace_back(std::make_unique<Rank>());
    rank.stub = proto::GpuWorker::NewStub(InternalChannel(address));
    rank.stream = rank.stub->RunSteps(&rank.context);
  }
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r]->reader = std::thread([this, r] {
      pthread_setname_np(pthread_self(), "kt-results");
      proto::StepResult result;
      while (ranks_[r]->stream->Read(&result)) OnResult(r, std::move(result));
    });
  }
}

StepStreams::~StepStreams() {
  for (auto& rank : ranks_) rank->context.TryCancel();
  for (auto& rank : ranks_) {
    rank->reader.join();
    rank->stream->Finish();
  }
}

void StepStreams::Send(const proto::StepPlan& plan) {
  {
    absl::MutexLock lock(&mutex_);
    step_ = plan.step_id();
    for (auto& rank : ranks_) rank->answered = false;
  }
  for (auto& rank : ranks_) rank->stream->Write(plan);
}

std::vector<int> StepStreams::Missing() const {
  absl::MutexLock lock(&mutex_);
  std::vector<int> missing;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r]->answered) missing.push_back(static_cast<int>(r));
  }
  return missing;
}

void StepStreams::OnResult(size_t rank, proto::StepResult result) {
  std::string error;
  {
    absl::MutexLock lock(&mutex_);
    if (result.step_id() != step_ || ranks_[rank]->answered || failed_) return;
    ranks_[rank]->answered = true;
    failed_ = ranks_.size() > 1 && !result.error().empty();
    if (failed_) {
      error = fmt::format("rank {}: {}", rank, result.error());
    } else {
      if (rank == 0) first_ = std::move(result);
      if (!std::all_of(ranks_.begin(), ranks_.end(), [](auto& r) { return r->answered; })) return;
      result = std::move(first_);
    }
  }
  if (!error.empty()) return callbacks_.failed(error);
  callbacks_.done(std::move(result));
}

}  // namespace kt
