// SPDX-License-Identifier: Apache-2.0
#include "cpu_expert_worker/expert_service.h"

#include <pthread.h>

#include "common/base/status.h"
#include "common/rpc/status_convert.h"

namespace kt {
namespace {
constexpr int64_t kStopPollUs = 100'000;  // how soon a ring without tasks is let go
}

ExpertService::ExpertService(int index, const RingShape& shape, RingWaitPolicy policy,
                             ExpertFunction function, SegmentSource segments,
                             ThreadStart on_thread_start, SelfCheckFunction self_check)
    : index_(index),
      shape_(shape),
      policy_(policy),
      function_(std::move(function)),
      segments_(std::move(segments)),
      on_thread_start_(std::move(on_thread_start)),
      self_check_(std::move(self_check)) {}

ExpertService::~ExpertService() {
  absl::MutexLock lock(&attach_mutex_);
  stop_ring_ = true;
  if (ring_thread_.joinable()) ring_thread_.join();
}

absl::Status ExpertService::CheckShape(const RingShape& s) const {
  if (s.hidden != shape_.hidden || s.top_k != shape_.top_k ||
      s.activation_bytes != shape_.activation_bytes || s.tokens_max > shape_.tokens_max) {
    return FailedPrecondition(
        "expert worker {}: tasks of {} rows of {} with top-k {} and {} bytes an activation, this "
        "worker takes up to {} rows of {} with {} "
        "and {}",
        index_, s.tokens_max, s.hidden, s.top_k, s.activation_bytes, shape_.tokens_max,
        shape_.hidden, shape_.top_k, shape_.activation_bytes);
  }
  return absl::OkStatus();
}

grpc::Status ExpertService::AttachRing(grpc::ServerContext*,
                                       const proto::AttachRingRequest* request,
                                       proto::AttachRingReply*) {
  auto attach = [&]() -> absl::Status {
    KT_ASSIGN_OR_RETURN(Segment segment,
                        segments_(request->ring().segment(), request->ring().bytes()));
    KT_ASSIGN_OR_RETURN(RingWorker ring, RingWorker::Attach(std::move(segment), index_, policy_));
    KT_RETURN_IF_ERROR(CheckShape(ring.shape()));
    absl::MutexLock lock(&attach_mutex_);
    stop_ring_ = true;
    if (ring_thread_.joinable()) ring_thread_.join();
    stop_ring_ = false;
    ring_thread_ = std::thread([this, r = std::move(ring)]() mutable {
      pthread_setname_np(pthread_self(), "kt-ring");
      on_thread_start_();
      ServeRing(std::move(r));
    });
    return absl::OkStatus();
  };
  return ToGrpc(attach());
}

void ExpertService::ServeRing(RingWorker ring) {
  while (!stop_ring_) {
    auto task = ring.Next(kStopPollUs);
    if (!task.ok()) return;  // ended by the host, or not to be trusted any more
    if (!task->has_value()) continue;
    const RingTask& t = **task;
    absl::Status status = Run({t.layer, t.tokens, t.rows, t.ids, t.weights, t.results});
    ring.Complete(t, status.code());
  }
}

absl::Status ExpertService::Run(const ExpertTask& task) {
  absl::MutexLock lock(&run_mutex_);
  int64_t start = NowUs();
  absl::Status status = function_(task);
  stats_.set_tasks(stats_.tasks() + 1);
  stats_.set_tokens(stats_.tokens() + static_cast<uint64_t>(task.tokens));
  stats_.set_busy_ms(stats_.busy_ms() + static_cast<double>(NowUs() - start) / 1000);
  return status;
}

absl::Status ExpertService::Answer(const proto::ForwardRequest& r, std::string& results) {
  auto tokens = static_cast<size_t>(r.tokens());
  auto slots = static_cast<int64_t>(r.tokens()) * shape_.top_k;
  if (r.tokens() < 1 || r.tokens() > shape_.tokens_max || r.top_k() != shape_.top_k ||
      r.expert_ids_size() != slots || r.weights_size() != slots ||
      r.rows().size() != tokens * static_cast<size_t>(shape_.hidden * shape_.activation_bytes)) {
    return InvalidArgument(
        "forward: {} tokens, top-k {}, {} ids, {} weights, {} row bytes; this worker takes up to "
        "{} tokens of top-k {} and width {}",
        r.tokens(), r.top_k(), r.expert_ids_size(), r.weights_size(), r.rows().size(),
        shape_.tokens_max, shape_.top_k, shape_.hidden);
  }
  results.resize(tokens * static_cast<size_t>(shape_.hidden) * 4);
  return Run({r.layer(), r.tokens(), r.rows().data(), r.expert_ids().data(), r.weights().data(),
              reinterpret_cast<float*>(results.data())});
}

grpc::Status ExpertService::Forward(
    grpc::ServerContext*,
    grpc::ServerReaderWriter<proto::ForwardReply, proto::ForwardRequest>* stream) {
  proto::ForwardRequest request;
  proto::ForwardReply reply;
  while (stream->Read(&request)) {
    absl::Status status = Answer(request, *reply.mutable_rows());
    reply.set_sequence(request.sequence());
    reply.set_status(static_cast<uint32_t>(status.code()));
    reply.set_error(Message(status));
    if (!status.ok()) reply.clear_rows();
    if (!stream->Write(reply)) break;
  }
  return grpc::Status::OK;
}

grpc::Status ExpertService::GetStats(grpc::ServerContext*, const proto::StatsRequest*,
                                     proto::StatsReply* reply) {
  absl::MutexLock lock(&run_mutex_);
  *reply = stats_;
  return grpc::Status::OK;
}

grpc::Status ExpertService::SelfCheck(grpc::ServerContext*, const proto::SelfCheckRequest* request,
                                      proto::SelfCheckReply* reply) {
  absl::MutexLock lock(&run_mutex_);
  *reply = self_check_(request->all_layers());
  return grpc::Status::OK;
}

}  // namespace kt
