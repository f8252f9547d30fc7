// SPDX-License-Identifier: Apache-2.0
#include "coordinator/grpc_api/generate_reactor.h"

#include <pthread.h>

#include <algorithm>
#include <numeric>

#include "common/base/status.h"
#include "coordinator/api/response.h"
#include "coordinator/grpc_api/generate_request.h"

namespace kt::grpc_api {

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), kt::Message(status));
}

void EventQueue::Post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void EventQueue::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  wake_.notify_one();
}

void EventQueue::Run() {
  while (true) {
    std::deque<std::function<void()>> tasks;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      tasks.swap(tasks_);
    }
    for (auto& task : tasks) task();
  }
}

EventThread::EventThread()
    : thread_([queue = queue_] {
        pthread_setname_np(pthread_self(), "grpc-events");
        queue->Run();
      }) {}

EventThread::~EventThread() {
  queue_->Close();
  thread_.join();
}

void GenerateReactor::Start(const api::GenerateRequest& request) {
  self_ = shared_from_this();
  auto call = service_->Start(
      [service = service_, request] {
        return ReadGenerateRequest(request, service->facts(), service->defaults());
      },
      self_);
  Post([self = self_, call = std::move(call)] {
    if (self->ended_)
      call->Cancel();
    else
      self->call_ = call;
  });
}

void GenerateReactor::OnPrepared(std::shared_ptr<const api::PreparedCall> call) {
  prepared_ = std::move(call);
  started_.resize(static_cast<size_t>(prepared_->num_choices()));
  cached_tokens_.resize(prepared_->generations.size());
}

// The prompt before the first event of a choice. Its first token has no log probability: 0.
void GenerateReactor::Echo(int prompt, const GenerationEvent& event, api::GenerateEvent* out) {
  const GenerationRequest& generation = prepared_->generations[static_cast<size_t>(prompt)];
  out->set_text(prepared_->echo_texts[static_cast<size_t>(prompt)]);
  for (int32_t id : generation.prompt_ids) out->add_token_ids(id);
  if (!generation.logprobs) return;
  *out->add_logprobs() = ToProto({generation.prompt_ids[0], 0, {}}, service_->tokenizer());
  for (const TokenLogprob& token : event.prompt_logprobs)
    *out->add_logprobs() = ToProto(token, service_->tokenizer());
}

void GenerateReactor::OnEvent(int prompt, GenerationEvent event) {
  if (ended_) return;
  api::GenerateEvent out;
  out.set_request_id(prepared_->request.id);
  out.set_choice(event.choice);
  auto started = started_.begin() + event.choice;
  if (!*started && prepared_->request.echo) Echo(prompt, event, &out);
  *started = true;
  out.mutable_text()->append(event.text);
  for (int32_t id : event.token_ids) out.add_token_ids(id);
  for (const TokenLogprob& token : event.logprobs)
    *out.add_logprobs() = ToProto(token, service_->tokenizer());
  out.set_finish_reason(std::string(api::FinishReasonName(event.finish_reason)));
  completion_tokens_ += static_cast<int>(event.token_ids.size());
  // An aborted choice's last event does not know.
  int& cached_tokens = cached_tokens_[static_cast<size_t>(prompt)];
  cached_tokens = std::max(cached_tokens, event.cached_tokens);
  if (event.finish_reason != FinishReason::kNone && ++num_finished_ == prepared_->num_choices()) {
    out.mutable_usage()->set_prompt_tokens(prepared_->prompt_tokens);
    out.mutable_usage()->set_completion_tokens(completion_tokens_);
    out.mutable_usage()->set_cached_tokens(
        std::accumulate(cached_tokens_.begin(), cached_tokens_.end(), 0));
  }
  unsent_bytes_ += static_cast<int64_t>(out.ByteSizeLong());
  unsent_.push_back(std::move(out));
  if (unsent_bytes_ > buffer_bytes_max_) {
    if (call_ != nullptr) call_->Cancel();
    return End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the client reads too slowly"));
  }
  WriteNext();
}

void GenerateReactor::OnEnd(absl::Status status) { End(ToGrpc(status)); }

void GenerateReactor::End(grpc::Status status) {
  if (ended_) return;
  ended_ = true;
  call_.reset();
  status_ = std::move(status);
  WriteNext();
}

void GenerateReactor::WriteNext() {
  if (writing_ || finished_) return;
  if (!unsent_.empty()) {
    writing_ = true;
    StartWrite(&unsent_.front());
  } else if (ended_) {
    finished_ = true;
    Finish(status_);
  }
}

void GenerateReactor::OnWriteDone(bool ok) {
  Post([self = shared_from_this(), ok] {
    self->writing_ = false;
    self->unsent_bytes_ -= static_cast<int64_t>(self->unsent_.front().ByteSizeLong());
    self->unsent_.pop_front();
    if (!ok) self->unsent_.clear();  // the stream is broken; OnCancel follows
    self->WriteNext();
  });
}

void GenerateReactor::OnCancel() {
  Post([self = shared_from_this()] {
    if (self->call_ != nullptr) self->call_->Cancel();
    if (!self->writing_) self->unsent_.clear();
    self->End(grpc::Status(grpc::StatusCode::CANCELLED, "cancelled by the client"));
  });
}

void GenerateReactor::OnDone() {
  Post([self = std::move(self_)] {});  // destroyed on the event thread
}

}  // namespace kt::grpc_api
