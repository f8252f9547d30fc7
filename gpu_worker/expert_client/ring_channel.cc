// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/expert_client/expert_channel.h"

namespace kt {
namespace {

class RingChannel final : public ExpertChannel {
 public:
  explicit RingChannel(RingHost ring) : ring_(std::move(ring)) {}

  void BeginStep() override { ring_.BeginStep(); }
  void EndStep() override { ring_.EndStep(); }
  Buffers Next() override {
    RingTask task = ring_.Next();
    return {task.rows, task.ids, task.weights};
  }
  absl::StatusOr<ExpertTicket> Submit(int layer, int tokens) override {
    return ring_.Submit(layer, tokens);
  }
  absl::Status Wait(ExpertTicket ticket, int64_t timeout_us) override {
    return ring_.Wait(ticket, timeout_us);
  }
  const float* partial(int worker, ExpertTicket ticket) const override {
    return ring_.results(worker, ticket);
  }
  int workers() const override { return ring_.shape().workers; }
  void Abort() override { ring_.Abort(); }

 private:
  RingHost ring_;
};

}  // namespace

std::unique_ptr<ExpertChannel> MakeRingChannel(RingHost ring) {
  return std::make_unique<RingChannel>(std::move(ring));
}

}  // namespace kt
