// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/rpc/server_runner.h"
#include "gpu_worker/expert_client/expert_channel.h"
#include "proto/cpu_expert_worker.grpc.pb.h"

namespace kt {
namespace {

constexpr int kSlots = kRingSlots;

// One worker's stream: requests are written by the engine, replies are collected by a thread.
class WorkerStream {
 public:
  WorkerStream(const std::string& target, size_t result_bytes)
      : stub_(proto::CpuExpertWorker::NewStub(InternalChannel(target))) {
    for (std::string& r : results_) r.resize(result_bytes);
    stream_ = stub_->Forward(&context_);
    reader_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "kt-forward");
      Read();
    });
  }
  ~WorkerStream() {
    Abort();
    reader_.join();
  }

  absl::Status Send(const proto::ForwardRequest& request) {
    if (!stream_->Write(request))
      return Aborted("expert channel: the stream to a worker has ended");
    return absl::OkStatus();
  }

  absl::Status Wait(uint32_t sequence, absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    auto answered = [this, sequence] { return ended_ || done_ >= sequence; };
    if (!mutex_.AwaitWithDeadline(absl::Condition(&answered), deadline)) {
      return DeadlineExceeded("expert channel: no answer to task {} in time", sequence);
    }
    if (done_ < sequence) return Aborted("expert channel: the stream to a worker has ended");
    return errors_[sequence % kSlots];
  }

  const float* result(uint32_t sequence) const {
    return reinterpret_cast<const float*>(results_[sequence % kSlots].data());
  }
  void Abort() { context_.TryCancel(); }

 private:
  void Read() {
    proto::ForwardReply reply;
    while (stream_->Read(&reply)) {
      absl::MutexLock lock(&mutex_);
      if (reply.sequence() != done_ + 1) break;
      uint32_t slot = static_cast<uint32_t>(reply.sequence()) % kSlots;
      errors_[slot] = absl::OkStatus();
      if (reply.status() != 0) {
        errors_[slot] = Unavailable("expert channel: worker failed task {}: {}", reply.sequence(),
                                    reply.error());
      } else if (reply.rows().size() > results_[slot].size()) {
        errors_[slot] = Unavailable("expert channel: worker answered task {} with {} bytes",
                                    reply.sequence(), reply.rows().size());
      } else {
        std::memcpy(results_[slot].data(), reply.rows().data(), reply.rows().size());
      }
      done_ = static_cast<uint32_t>(reply.sequence());
    }
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }

  std::unique_ptr<proto::CpuExpertWorker::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::ForwardRequest, proto::ForwardReply>> stream_;
  std::array<std::string, kSlots> results_;
  std::thread reader_;

  absl::Mutex mutex_;
  uint32_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::array<absl::Status, kSlots> errors_ ABSL_GUARDED_BY(mutex_);
};

class GrpcChannel final : public ExpertChannel {
 public:
  GrpcChannel(const std::vector<std::string>& targets, const RingShape& shape) : shape_(shape) {
    size_t rows = static_cast<size_t>(shape.tokens_max);
    rows_.resize(rows * static_cast<size_t>(shape.hidden * shape.activation_bytes));
    ids_.resize(rows * static_cast<size_t>(shape.top_k));
    weights_.resize(ids_.size());
    for (const std::string& target : targets) {
      streams_.push_back(
          std::make_unique<WorkerStream>(target, rows * static_cast<size_t>(shape.hidden) * 4));
    }
  }

  void BeginStep() override {}
  void EndStep() override {}
  Buffers Next() override { return {rows_.data(), ids_.data(), weights_.data()}; }

  absl::StatusOr<ExpertTicket> Submit(int layer, int tokens) override {
    request_.set_sequence(++submitted_);
    request_.set_layer(layer);
    request_.set_tokens(tokens);
    request_.set_top_k(shape_.top_k);
    size_t slots = static_cast<size_t>(tokens * shape_.top_k);
    request_.set_rows(
        rows_.data(),
        static_cast<size_t>(tokens) * static_cast<size_t>(shape_.hidden * shape_.activation_bytes));
    request_.mutable_expert_ids()->Assign(ids_.begin(), ids_.begin() + static_cast<long>(slots));
    request_.mutable_weights()->Assign(weights_.begin(),
                                       weights_.begin() + static_cast<long>(slots));
    for (auto& stream : streams_) KT_RETURN_IF_ERROR(stream->Send(request_));
    return submitted_;
  }

  absl::Status Wait(ExpertTicket ticket, int64_t timeout_us) override {
    absl::Time deadline = absl::Now() + absl::Microseconds(timeout_us);
    for (size_t w = 0; w < streams_.size(); ++w) {
      if (absl::Status s = streams_[w]->Wait(ticket, deadline); !s.ok())
        return Annotate(s, fmt::format("expert worker {}", w));
    }
    return absl::OkStatus();
  }

  const float* partial(int worker, ExpertTicket ticket) const override {
    return streams_[static_cast<size_t>(worker)]->result(ticket);
  }
  int workers() const override { return static_cast<int>(streams_.size()); }
  void Abort() override {
    for (auto& stream : streams_) stream->Abort();
  }

 private:
  RingShape shape_;
  std::string rows_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
  proto::ForwardRequest request_;
  std::vector<std::unique_ptr<WorkerStream>> streams_;
  uint32_t submitted_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertChannel>> MakeGrpcChannel(
    const std::vector<std::string>& targets, const RingShape& shape) {
  KT_RETURN_IF_ERROR(CheckRingShape(shape));
  return std::unique_ptr<ExpertChannel>(std::make_unique<GrpcChannel>(targets, shape));
}

}  // namespace kt
