// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/generation_service.h"

#include <pthread.h>

#include <chrono>

#include "coordinator/api/api_error.h"
#include "coordinator/api/prepare.h"

namespace kt::api {
namespace {

using Clock = std::chrono::steady_clock;

// Events that the carrier's thread may lag behind the scheduler; beyond, the call is ended.
constexpr size_t kPendingEventsMax = 65536;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

// Three threads meet here: a worker prepares and submits, the scheduler pushes events, the
// carrier's thread takes them.
class GenerationService::Call : public GenerationCall, public std::enable_shared_from_this<Call> {
 public:
  Call(GenerationService* service, std::shared_ptr<CallClient> client)
      : service_(service), client_(std::move(client)) {
    service_->metrics_->RequestStarted();
  }

  void Cancel() override {
    if (End(/*aborted=*/true) != nullptr) service_->metrics_->ClientDisconnected();
  }

  // On a worker thread.
  void PrepareAndSubmit(const std::function<absl::StatusOr<ApiRequest>()>& parse);

  // On the scheduler's thread.
  void Push(int prompt, GenerationEvent event);

  // Ends the call with `status`, reported on the client's thread. Any thread but the scheduler's.
  void Fail(absl::Status status) {
    if (auto client = End(/*aborted=*/true)) {
      client->Post([client, status = std::move(status)] { client->OnEnd(status); });
    }
  }

  // Finishes what runs with "abort". Any thread but the scheduler's.
  void Abort() {
    auto client = this->client();
    if (client == nullptr) return;
    client->Post([self = shared_from_this()] {
      auto client = self->End(/*aborted=*/true);
      if (client == nullptr) return;
      for (size_t i = 0; i < self->finished_.size(); ++i) {
        if (self->finished_[i]) continue;
        GenerationEvent event;
        event.choice = static_cast<int>(i) % self->choices_per_prompt_;
        event.finish_reason = FinishReason::kAbort;
        client->OnEvent(static_cast<int>(i) / self->choices_per_prompt_, std::move(event));
      }
      client->OnEnd(self->finished_.empty() ? Cancelled("the request was aborted before it ran")
                                            : absl::OkStatus());
    });
  }

 private:
  std::shared_ptr<CallClient> client() {
    std::lock_guard lock(mutex_);
    return client_;
  }

  std::shared_ptr<CallClient> End(bool aborted);
  absl::Status Submit(const std::function<absl::StatusOr<ApiRequest>()>& parse);
  void Drain();
  void Deliver(CallClient& client, int prompt, GenerationEvent event);

  GenerationService* const service_;
  const Clock::time_point start_ = Clock::now();

  std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<CallClient> client_;  // null: ended
  std::string id_;                      // empty: not registered
  std::vector<std::string> submitted_;  // ids the generator knows
  std::deque<std::pair<int, GenerationEvent>> events_;
  bool overflow_ = false;

  // Only on the client's thread.
  int choices_per_prompt_ = 1;
  std::vector<bool> finished_;  // by choice of the answer
  std::vector<Clock::time_point> last_token_;
  int num_finished_ = 0;
};

class GenerationService::Sink : public GenerationSink {
 public:
  Sink(std::shared_ptr<Call> call, int prompt) : call_(std::move(call)), prompt_(prompt) {}
  void OnEvent(GenerationEvent event) override { call_->Push(prompt_, std::move(event)); }

 private:
  const std::shared_ptr<Call> call_;
  const int prompt_;
};

// The one way a call ends: the first caller gets the client, the work is cancelled, the id is free
// again.
std::shared_ptr<CallClient> GenerationService::Call::End(bool aborted) {
  std::shared_ptr<CallClient> client;
  std::vector<std::string> submitted;
  std::string id;
  {
    std::lock_guard lock(mutex_);
    if (client_ == nullptr) return nullptr;
    client.swap(client_);
    submitted.swap(submitted_);
    events_.clear();
    id.swap(id_);
  }
  if (aborted) {
    for (const std::string& request : submitted) service_->generator_->Cancel(request);
  }
  if (!id.empty()) service_->Unregister(id);
  service_->metrics_->RequestEnded(Seconds(Clock::now() - start_), aborted);
  return client;
}

void GenerationService::Call::PrepareAndSubmit(
    const std::function<absl::StatusOr<ApiRequest>()>& parse) {
  if (absl::Status status = Submit(parse); !status.ok()) Fail(std::move(status));
}

absl::Status GenerationService::Call::Submit(
    const std::function<absl::StatusOr<ApiRequest>()>& parse) {
  if (client() == nullptr) return absl::OkStatus();  // gone while waiting for a thread
  KT_ASSIGN_OR_RETURN(ApiRequest request, parse());
  KT_ASSIGN_OR_RETURN(PreparedCall prepared_call,
                      Prepare(std::move(request), *service_->renderer_, *service_->tokenizer_,
                              service_->facts_, service_->token_bytes_max_));
  auto prepared = std::make_shared<const PreparedCall>(std::move(prepared_call));
  KT_RETURN_IF_ERROR(service_->Register(prepared->request.id, shared_from_this()));
  std::shared_ptr<CallClient> client;
  {
    std::lock_guard lock(mutex_);
    client = client_;
    if (client != nullptr) id_ = prepared->request.id;
  }
  if (client == nullptr) {  // ended between: nobody else would free the id
    service_->Unregister(prepared->request.id);
    return absl::OkStatus();
  }
  service_->metrics_->AddPromptTokens(prepared->prompt_tokens);
  client->Post([self = shared_from_this(), prepared] {
    auto client = self->client();
    if (client == nullptr) return;
    self->choices_per_prompt_ = prepared->request.generation.n;
    self->finished_.resize(static_cast<size_t>(prepared->num_choices()));
    self->last_token_.resize(self->finished_.size());
    client->OnPrepared(prepared);
  });
  for (size_t p = 0; p < prepared->generations.size(); ++p) {
    const GenerationRequest& generation = prepared->generations[p];
    KT_RETURN_IF_ERROR(service_->generator_->Submit(
        generation, std::make_shared<Sink>(shared_from_this(), static_cast<int>(p))));
    std::unique_lock lock(mutex_);
    if (client_ != nullptr) {
      submitted_.push_back(generation.id);
      continue;
    }
    lock.unlock();
    service_->generator_->Cancel(generation.id);  // ended while it was submitted
    break;
  }
  return absl::OkStatus();
}

void GenerationService::Call::Push(int prompt, GenerationEvent event) {
  std::shared_ptr<CallClient> client;
  {
    std::lock_guard lock(mutex_);
    if (client_ == nullptr) return;
    overflow_ = overflow_ || events_.size() >= kPendingEventsMax;
    if (!overflow_) events_.emplace_back(prompt, std::move(event));
    if (events_.size() > 1) return;  // a Drain is on its way
    client = client_;
  }
  client->Post([self = shared_from_this()] { self->Drain(); });
}

void GenerationService::Call::Drain() {
  std::deque<std::pair<int, GenerationEvent>> events;
  std::shared_ptr<CallClient> client;
  {
    std::lock_guard lock(mutex_);
    if (client_ == nullptr) return;
    if (!overflow_) {
      events.swap(events_);
      client = client_;
    }
  }
  if (client == nullptr)
    return Fail(WithCode(ResourceExhausted("the server could not keep up with the answer's events"),
                         kOverloaded));
  for (auto& [prompt, event] : events) {
    if (!event.error.ok()) return Fail(event.error);
    Deliver(*client, prompt, std::move(event));
    if (this->client() == nullptr) return;  // cancelled by its client meanwhile
  }
  if (num_finished_ == static_cast<int>(finished_.size())) {
    if (auto last = End(/*aborted=*/false)) last->OnEnd(absl::OkStatus());
  }
}

void GenerationService::Call::Deliver(CallClient& client, int prompt, GenerationEvent event) {
  const auto index = static_cast<size_t>(prompt * choices_per_prompt_ + event.choice);
  if (index >= finished_.size() || finished_[index]) return;
  if (!event.token_ids.empty()) {
    const auto now = Clock::now();
    const auto tokens = static_cast<int64_t>(event.token_ids.size());
    Clock::time_point& last = last_token_[index];
    if (last == Clock::time_point()) {
      service_->metrics_->ObserveTimeToFirstToken(Seconds(now - start_));
    } else {
      service_->metrics_->ObserveInterTokenLatency(Seconds(now - last) /
                                                   static_cast<double>(tokens));
    }
    last = now;
    service_->metrics_->AddGenerationTokens(tokens);
  }
  if (event.finish_reason != FinishReason::kNone) {
    finished_[index] = true;
    ++num_finished_;
  }
  client.OnEvent(prompt, std::move(event));
}

GenerationService::GenerationService(ModelFacts facts, ApiDefaults defaults,
                                     const Tokenizer* tokenizer, PromptRenderer* renderer,
                                     Generator* generator, const RuntimeStatus* status,
                                     metrics::Metrics* metrics, const Options& options)
    : facts_(std::move(facts)),
      defaults_(defaults),
      tokenizer_(tokenizer),
      renderer_(renderer),
      generator_(generator),
      status_(status),
      metrics_(metrics),
      token_bytes_max_(LongestTokenBytes(*tokenizer)),
      queue_max_(options.queue_max) {
  for (int i = 0; i < options.threads; ++i) {
    workers_.emplace_back([this, i] {
      pthread_setname_np(pthread_self(), fmt::format("api-prepare-{}", i).c_str());
      WorkerLoop();
    });
  }
}

GenerationService::~GenerationService() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  // What still runs has lost its carrier.
  std::map<std::string, std::shared_ptr<Call>> calls;
  {
    std::lock_guard lock(mutex_);
    calls = calls_;
  }
  for (auto& [id, call] : calls) call->Cancel();
}

std::shared_ptr<GenerationCall> GenerationService::Start(
    std::function<absl::StatusOr<ApiRequest>()> parse, std::shared_ptr<CallClient> client) {
  auto call = std::make_shared<Call>(this, std::move(client));
  absl::Status status =
      status_->Ready() ? absl::OkStatus()
                       : Unavailable("the server is starting or stopping; GET /health tells more");
  if (status.ok())
    status = Run([call, parse = std::move(parse)] { call->PrepareAndSubmit(parse); });
  if (!status.ok()) call->Fail(std::move(status));
  return call;
}

absl::Status GenerationService::Run(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return Unavailable("the server is stopping");
    if (static_cast<int>(jobs_.size()) >= queue_max_) {
      return WithCode(
          Unavailable("{} requests are waiting to be tokenized, the most allowed; try again later",
                      queue_max_),
          kOverloaded);
    }
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
  return absl::OkStatus();
}

void GenerationService::WorkerLoop() {
  while (true) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

absl::Status GenerationService::Register(const std::string& id, std::shared_ptr<Call> call) {
  std::lock_guard lock(mutex_);
  if (!calls_.emplace(id, std::move(call)).second) {
    return WithParam(
        AlreadyExists("rid {} belongs to a request that still runs; choose another", id), "rid");
  }
  return absl::OkStatus();
}

void GenerationService::Unregister(const std::string& id) {
  std::lock_guard lock(mutex_);
  calls_.erase(id);
}

absl::Status GenerationService::Abort(const std::string& id) {
  std::shared_ptr<Call> call;
  {
    std::lock_guard lock(mutex_);
    auto it = calls_.find(id);
    if (it == calls_.end())
      return WithParam(NotFound("rid {}: no such request is running", id), "rid");
    call = it->second;
  }
  call->Abort();
  return absl::OkStatus();
}

void GenerationService::AbortAll() {
  std::vector<std::shared_ptr<Call>> calls;
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, call] : calls_) calls.push_back(call);
  }
  for (auto& call : calls) call->Abort();
}

int GenerationService::live_calls() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(calls_.size());
}

}  // namespace kt::api
