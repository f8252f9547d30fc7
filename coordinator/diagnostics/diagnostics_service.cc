// SPDX-License-Identifier: Apache-2.0
#include "coordinator/diagnostics/diagnostics_service.h"

#include <deque>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/rpc/status_convert.h"

namespace kt {
namespace {

// Events wait here for the gRPC thread; a trace is as long as its request, so the queue is bounded
// by it.
class QueueSink final : public GenerationSink {
 public:
  void OnEvent(GenerationEvent event) override {
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
  }
  // False after `timeout` without an event.
  bool Next(absl::Duration timeout, GenerationEvent& event) {
    absl::MutexLock lock(&mutex_);
    auto ready = [this] { return !events_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&ready), timeout)) return false;
    event = std::move(events_.front());
    events_.pop_front();
    return true;
  }

 private:
  absl::Mutex mutex_;
  std::deque<GenerationEvent> events_ ABSL_GUARDED_BY(mutex_);
};

void CopyLogprob(const TokenLogprob& from, proto::TokenLogprob* to) {
  to->set_token_id(from.token_id);
  to->set_logprob(from.logprob);
  for (const auto& [id, logprob] : from.top) {
    to->add_top_ids(id);
    to->add_top_logprobs(logprob);
  }
}

proto::TraceEvent ToProto(const GenerationEvent& event) {
  proto::TraceEvent out;
  out.mutable_token_ids()->Add(event.token_ids.begin(), event.token_ids.end());
  for (const TokenLogprob& x : event.logprobs) CopyLogprob(x, out.add_logprobs());
  for (const TokenLogprob& x : event.prompt_logprobs) CopyLogprob(x, out.add_prompt_logprobs());
  for (const auto& capture : event.captures) *out.add_captures() = *capture;
  out.set_finished(event.finish_reason != FinishReason::kNone);
  return out;
}

}  // namespace

absl::StatusOr<GenerationRequest> DiagnosticsService::MakeRequest(const proto::TraceRequest& r) {
  if (r.token_ids().empty())
    return InvalidArgument("trace: token_ids is empty, at least one token is needed");
  int64_t length = int64_t{r.token_ids_size()} + r.max_new_tokens();
  if (r.max_new_tokens() < 0 || length > limits_.context_length) {
    return InvalidArgument("trace: {} tokens and {} new ones, the context holds {}",
                           r.token_ids_size(), r.max_new_tokens(), limits_.context_length);
  }
  for (int id : r.token_ids()) {
    if (id < 0 || id >= limits_.vocab)
      return InvalidArgument("trace: token id {} is outside the vocabulary of {}", id,
                             limits_.vocab);
  }
  GenerationRequest request;
  request.id = fmt::format("trace-{}", ++count_);
  request.prompt_ids.assign(r.token_ids().begin(), r.token_ids().end());
  request.sampling.temperature = r.greedy() ? 0.0f : 1.0f;
  request.sampling.seed = r.seed();
  request.max_new_tokens = r.max_new_tokens();
  request.ignore_eos = true;
  request.logprobs = true;
  request.prompt_logprobs = r.prompt_logprobs();
  request.capture = r.capture();
  return request;
}

grpc::Status DiagnosticsService::Trace(grpc::ServerContext* context,
                                       const proto::TraceRequest* request,
                                       grpc::ServerWriter<proto::TraceEvent>* writer) {
  auto generation = MakeRequest(*request);
  if (!generation.ok()) return ToGrpc(generation.status());
  const std::string id = generation->id;
  auto sink = std::make_shared<QueueSink>();
  if (absl::Status s = generator_->Submit(*std::move(generation), sink); !s.ok()) return ToGrpc(s);
  GenerationEvent event;
  while (!context->IsCancelled()) {
    if (!sink->Next(absl::Milliseconds(200), event)) continue;
    if (!event.error.ok()) return ToGrpc(event.error);
    bool last = event.finish_reason != FinishReason::kNone;
    if (!writer->Write(ToProto(event))) break;
    if (last) return grpc::Status::OK;
  }
  generator_->Cancel(id);
  return grpc::Status::CANCELLED;
}

grpc::Status DiagnosticsService::SelfCheck(grpc::ServerContext*,
                                           const proto::SelfCheckRequest* request,
                                           proto::SelfCheckReplies* replies) {
  auto done = self_check_(*request);
  if (!done.ok()) return ToGrpc(done.status());
  *replies = *std::move(done);
  return grpc::Status::OK;
}

grpc::Status DiagnosticsService::RecordTimelines(grpc::ServerContext* context,
                                                 const proto::TimelineRequest* request,
                                                 proto::TimelineReplies* replies) {
  auto recorded = record_(*request, [context] { return context->IsCancelled(); });
  if (!recorded.ok()) return ToGrpc(recorded.status());
  *replies = *std::move(recorded);
  return grpc::Status::OK;
}

}  // namespace kt
