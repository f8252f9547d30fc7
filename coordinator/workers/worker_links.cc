// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/worker_links.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/rpc/server_runner.h"
#include "common/rpc/status_convert.h"
#include "spdlog/spdlog.h"

namespace kt {
namespace {

constexpr auto kAttachTimeout = std::chrono::seconds(10);
constexpr absl::Duration kTimer = absl::Seconds(1);

TimePoint Now() { return SteadyClock().Now(); }

}  // namespace

// A RunSteps call to every rank. Results are read by a thread for each.
class WorkerLinks::StepStreams {
 public:
  struct Callbacks {
    std::function<void(proto::StepResult)> done;     // all ranks have answered; that of rank 0
    std::function<void(std::string error)> failed;   // of several ranks, once: no step can follow
  };
  StepStreams(const std::vector<std::string>& addresses, Callbacks callbacks)
      : callbacks_(std::move(callbacks)) {
    for (const std::string& address : addresses) {
      auto& rank = *ranks_.emplace_back(std::make_unique<Rank>());
      rank.stub = proto::GpuWorker::NewStub(InternalChannel(address));
      rank.stream = rank.stub->RunSteps(&rank.context);
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r]->reader = std::thread([this, r] {
        pthread_setname_np(pthread_self(), "kt-results");
        proto::StepResult result;
        while (ranks_[r]->stream->Read(&result)) OnResult(r, result);
      });
    }
  }
  ~StepStreams() {
    for (auto& rank : ranks_) rank->context.TryCancel();
    for (auto& rank : ranks_) {
      rank->reader.join();
      rank->stream->Finish();
    }
  }
  // A plan that cannot be sent is lost with its worker, whose end is noticed elsewhere.
  void Send(const proto::StepPlan& plan) {
    {
      absl::MutexLock lock(&mutex_);
      step_ = plan.step_id();
      for (auto& rank : ranks_) rank->answered = false;
    }
    for (auto& rank : ranks_) rank->stream->Write(plan);
  }
  // Ranks that have not answered the last step.
  std::vector<int> Missing() const {
    absl::MutexLock lock(&mutex_);
    std::vector<int> missing;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (!ranks_[r]->answered) missing.push_back(static_cast<int>(r));
    }
    return missing;
  }

 private:
  struct Rank {
    std::unique_ptr<proto::GpuWorker::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<proto::StepPlan, proto::StepResult>> stream;
    std::thread reader;
    bool answered = true;  // the step sent last
  };

  void OnResult(size_t r, proto::StepResult& result) {
    std::optional<std::string> error;
    {
      absl::MutexLock lock(&mutex_);
      if (result.step_id() != step_ || ranks_[r]->answered || failed_) return;
      ranks_[r]->answered = true;
      if (ranks_.size() > 1 && !result.error().empty()) {
        failed_ = true;
        error = std::move(*result.mutable_error());
      } else {
        if (r == 0) first_ = std::move(result);
        if (!std::all_of(ranks_.begin(), ranks_.end(), [](auto& rank) { return rank->answered; }))
          return;
        result = std::move(first_);
      }
    }
    if (error) return callbacks_.failed(fmt::format("rank {}: {}", r, *error));
    callbacks_.done(std::move(result));
  }

  const Callbacks callbacks_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  mutable absl::Mutex mutex_;
  uint64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  proto::StepResult first_ ABSL_GUARDED_BY(mutex_);  // of rank 0
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
};

WorkerLinks::WorkerLinks(const proto::RuntimeConfig& config, const RegistryConfig& registry,
                         Callbacks callbacks)
    : config_(config), callbacks_(std::move(callbacks)), registry_(registry) {}

WorkerLinks::~WorkerLinks() { Stop(); }

void WorkerLinks::Start(SchedulerLoop* loop) {
  loop_ = loop;
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "kt-links");
    Run();
  });
}

void WorkerLinks::Stop() {
  std::shared_ptr<StepStreams> streams;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    streams = std::move(streams_);
  }
  if (thread_.joinable()) thread_.join();
}

bool WorkerLinks::serving() const {
  absl::MutexLock lock(&mutex_);
  return registry_.serving();
}

bool WorkerLinks::was_serving() const {
  absl::MutexLock lock(&mutex_);
  return registry_.was_serving();
}

Json WorkerLinks::Health() const {
  absl::MutexLock lock(&mutex_);
  return registry_.Health();
}

grpc::Status WorkerLinks::Register(grpc::ServerContext*, const proto::RegisterRequest* request,
                                   proto::RegisterReply* reply) {
  absl::MutexLock lock(&mutex_);
  absl::Status status = registry_.OnRegister(*request, Now());
  for (RegistryAction& a : registry_.TakeActions()) actions_.push_back(std::move(a));
  if (!status.ok()) {
    spdlog::error("{}", Message(status));
    return ToGrpc(status);
  }
  *reply->mutable_config() = config_;
  return grpc::Status::OK;
}

grpc::Status WorkerLinks::Report(grpc::ServerContext*,
                                 grpc::ServerReader<proto::WorkerReport>* reader,
                                 proto::ReportReply*) {
  proto::WorkerReport report;
  absl::Status status;
  while (status.ok() && reader->Read(&report)) {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return grpc::Status::CANCELLED;
    status = registry_.OnReport(report, Now());
    for (RegistryAction& a : registry_.TakeActions()) actions_.push_back(std::move(a));
  }
  absl::MutexLock lock(&mutex_);
  if (status.ok())
    registry_.OnGone({report.kind(), report.index()}, report.incarnation(),
                     "its report stream ended");
  for (RegistryAction& a : registry_.TakeActions()) actions_.push_back(std::move(a));
  return ToGrpc(status);
}

void WorkerLinks::Send(const proto::StepPlan& plan) {
  std::shared_ptr<StepStreams> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams = streams_;
  }
  step_sent_ = Now().time_since_epoch().count();
  if (streams != nullptr) streams->Send(plan);
}

void WorkerLinks::CheckWatchdog() {
  int64_t sent = step_sent_;
  auto limit = std::chrono::seconds(config_.server().watchdog_timeout_s());
  if (sent == 0 || Now() - TimePoint(Duration(sent)) < limit) return;
  step_sent_ = 0;
  std::shared_ptr<StepStreams> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams = streams_;
  }
  if (streams == nullptr) return;
  spdlog::error(
      "a step has taken longer than {} s (--watchdog-timeout); GPU workers that have not answered "
      "are ended and started again",
      limit.count());
  for (int rank : streams->Missing()) callbacks_.kill(WorkerName({proto::WORKER_KIND_GPU, rank}));
}

void WorkerLinks::Run() {
  while (true) {
    std::deque<RegistryAction> actions;
    {
      absl::MutexLock lock(&mutex_);
      auto due = [this] { return stopping_ || !actions_.empty(); };
      mutex_.AwaitWithTimeout(absl::Condition(&due), kTimer);
      if (stopping_) return;
      registry_.OnTimer(Now());
      for (RegistryAction& a : registry_.TakeActions()) actions_.push_back(std::move(a));
      actions.swap(actions_);
    }
    for (RegistryAction& action : actions) Carry(action);
    CheckWatchdog();
  }
}

void WorkerLinks::Carry(RegistryAction& action) {
  if (auto* lost = std::get_if<LostAction>(&action)) {
    spdlog::warn("steps stop: {}", lost->reason);
    std::shared_ptr<StepStreams> streams;
    {
      absl::MutexLock lock(&mutex_);
      streams = std::move(streams_);
    }
    step_sent_ = 0;
    loop_->PostWorkersLost(lost->reason);
  } else if (auto* kill = std::get_if<KillAction>(&action)) {
    spdlog::error("{} has been silent for too long and is ended", WorkerName(kill->key));
    callbacks_.kill(WorkerName(kill->key));
  } else {
    const auto& attach = std::get<AttachAction>(action);
    absl::Status status = Attach(attach);
    bool serving = false;
    {
      absl::MutexLock lock(&mutex_);
      if (status.ok()) {
        registry_.OnAttached(attach.generation);
      } else {
        registry_.OnAttachFailed(attach.generation, Message(status));
      }
      serving = registry_.serving();
    }
    if (!status.ok()) spdlog::warn("{}", Message(status));
    if (!serving) return;
    const proto::WorkerFacts& facts = attach.workers[0].facts;
    loop_->PostWorkersReady(facts.kv_blocks(), facts.step_tokens_max());
    callbacks_.on_serving();
  }
}

std::vector<WorkerEndpoint> WorkerLinks::Ready() const {
  absl::MutexLock lock(&mutex_);
  return registry_.Ready();
}

absl::StatusOr<proto::SelfCheckReplies> WorkerLinks::SelfCheck(
    const proto::SelfCheckRequest& request) {
  if (!serving()) return Unavailable("self-check: not all workers are ready");
  proto::SelfCheckReplies replies;
  for (const WorkerEndpoint& w : Ready()) {
    proto::WorkerSelfCheck* out = replies.add_workers();
    out->set_worker(WorkerName(w.key));
    out->set_isa(w.isa);
    grpc::ClientContext context;
    auto channel = InternalChannel(w.address);
    grpc::Status status =
        w.key.kind == proto::WORKER_KIND_GPU
            ? proto::GpuWorker::NewStub(channel)->SelfCheck(&context, request, out->mutable_reply())
            : proto::CpuExpertWorker::NewStub(channel)->SelfCheck(&context, request,
                                                                  out->mutable_reply());
    KT_RETURN_IF_ERROR(Annotate(FromGrpc(status), WorkerName(w.key)));
  }
  return replies;
}

absl::Status WorkerLinks::Attach(const AttachAction& action) {
  auto deadline = [](grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + kAttachTimeout);
  };
  proto::AttachExpertsRequest request;
  request.set_generation(action.generation);
  request.set_transport(config_.experts().transport());
  for (const WorkerEndpoint& w : action.workers) {
    if (w.key.kind != proto::WORKER_KIND_CPU_EXPERT) continue;
    proto::ExpertEndpoint* e = request.add_workers();
    e->set_index(w.key.index);
    e->set_incarnation(w.incarnation);
    e->set_address(w.address);
  }
  proto::AttachExpertsReply reply;  // of rank 0
  std::vector<std::string> ranks;   // their addresses
  for (const WorkerEndpoint& w : action.workers) {
    if (w.key.kind != proto::WORKER_KIND_GPU) continue;
    grpc::ClientContext context;
    deadline(context);
    proto::AttachExpertsReply of_rank;
    auto stub = proto::GpuWorker::NewStub(InternalChannel(w.address));
    KT_RETURN_IF_ERROR(Annotate(FromGrpc(stub->AttachExperts(&context, request, &of_rank)),
                                "attach " + WorkerName(w.key)));
    if (ranks.empty()) reply = of_rank;
    ranks.push_back(w.address);
  }
  // Segments of the generation before live on only as long as they are mapped.
  for (auto [held, now] : {std::pair{&ring_, reply.ring().segment()},
                           {&collective_, reply.collective_segment()}}) {
    if (!held->empty() && *held != now) callbacks_.drop_segment(*held);
    *held = now;
  }
  for (const WorkerEndpoint& w : action.workers) {
    if (w.key.kind != proto::WORKER_KIND_CPU_EXPERT || !reply.has_ring()) continue;
    grpc::ClientContext context;
    deadline(context);
    proto::AttachRingRequest ring;
    *ring.mutable_ring() = reply.ring();
    proto::AttachRingReply ignored;
    auto stub = proto::CpuExpertWorker::NewStub(InternalChannel(w.address));
    KT_RETURN_IF_ERROR(Annotate(FromGrpc(stub->AttachRing(&context, ring, &ignored)),
                                "attach " + WorkerName(w.key)));
  }
  auto streams = std::make_shared<StepStreams>(
      ranks, StepStreams::Callbacks{
                 .done =
                     [this](proto::StepResult result) {
                       step_sent_ = 0;
                       loop_->PostResult(std::move(result));
                     },
                 .failed =
                     [this, generation = action.generation](const std::string& error) {
                       step_sent_ = 0;
                       absl::MutexLock lock(&mutex_);
                       registry_.OnStepFailed(generation, error);
                       for (RegistryAction& a : registry_.TakeActions())
                         actions_.push_back(std::move(a));
                     }});
  absl::MutexLock lock(&mutex_);
  if (!stopping_) streams_.swap(streams);
  return absl::OkStatus();
}

}  // namespace kt
