// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/worker_links.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/observe/timeline.h"
#include "common/rpc/server_runner.h"
#include "common/rpc/status_convert.h"
#include "common/rpc/timeline_service.h"
#include "spdlog/spdlog.h"

namespace kt {
namespace {

constexpr auto kAttachTimeout = std::chrono::seconds(10);
constexpr absl::Duration kTimer = absl::Seconds(1);

TimePoint Now() { return SteadyClock().Now(); }

}  // namespace

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
    streams.reset();
    DetachExperts();
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
    loop_->PostWorkersReady(facts.kv_blocks(), facts.step_tokens_max(), costs_);
    callbacks_.on_serving();
  }
}

// So that the memory of lost experts is free for those that are loaded next. An error costs memory
// for a while.
void WorkerLinks::DetachExperts() {
  proto::DetachExpertsRequest request;
  request.set_generation(attached_);
  for (const WorkerEndpoint& w : Ready()) {
    if (w.key.kind != proto::WORKER_KIND_GPU) continue;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kAttachTimeout);
    proto::DetachExpertsReply ignored;
    auto stub = proto::GpuWorker::NewStub(InternalChannel(w.address));
    const absl::Status status = FromGrpc(stub->DetachExperts(&context, request, &ignored));
    if (!status.ok()) spdlog::warn("detach {}: {}", WorkerName(w.key), Message(status));
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

absl::StatusOr<proto::TimelineReplies> WorkerLinks::RecordTimelines(
    const proto::TimelineRequest& request, const std::function<bool()>& cancelled) {
  const std::vector<WorkerEndpoint> workers = Ready();
  std::vector<absl::StatusOr<proto::TimelineReply>> answers(workers.size());
  std::vector<std::unique_ptr<grpc::ClientContext>> calls;
  std::vector<std::thread> threads;
  // Whoever records here has the workers too.
  auto start_workers = [&] {
    for (size_t i = 0; i < workers.size(); ++i) {
      grpc::ClientContext& call = *calls.emplace_back(std::make_unique<grpc::ClientContext>());
      threads.emplace_back([&, i] {
        proto::TimelineReply reply;
        const grpc::Status status = proto::Timeline::NewStub(InternalChannel(workers[i].address))
                                        ->Record(&call, request, &reply);
        if (status.ok()) {
          answers[i] = std::move(reply);
        } else {
          answers[i] = Annotate(FromGrpc(status), WorkerName(workers[i].key));
        }
      });
    }
  };
  absl::StatusOr<proto::TimelineReply> own =
      RecordTimeline("kt-coordinator", request, cancelled, start_workers);
  if (cancelled()) {
    for (auto& call : calls) call->TryCancel();
  }
  for (std::thread& t : threads) t.join();
  KT_RETURN_IF_ERROR(own.status());
  proto::TimelineReplies replies;
  *replies.add_processes() = *std::move(own);
  for (absl::StatusOr<proto::TimelineReply>& answer : answers) {
    KT_RETURN_IF_ERROR(answer.status());
    *replies.add_processes() = *std::move(answer);
  }
  return replies;
}

void WorkerLinks::StepEnded() {
  const int64_t sent = step_sent_.exchange(0);
  if (sent != 0) timeline::Add({"step", nullptr, 0, sent, timeline::NowNs(), 0});
}

// Those of the generation before live on only as long as they are mapped.
void WorkerLinks::HoldSegments(const proto::AttachExpertsReply& reply) {
  for (auto [held, now] :
       {std::pair{&ring_, reply.ring().segment()}, {&collective_, reply.collective_segment()}}) {
    if (!held->empty() && *held != now) callbacks_.drop_segment(*held);
    *held = now;
  }
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
    if (ranks.empty()) {
      reply = of_rank;
      HoldSegments(reply);
    }
    ranks.push_back(w.address);
  }
  attached_ = action.generation;
  const proto::LayerwiseFacts& facts = reply.layerwise();
  costs_ = {.possible = reply.has_layerwise(),
            .copy_bytes = facts.copy_bytes(),
            .copy_gbytes_per_s = facts.copy_gbytes_per_s(),
            .device_ms_per_row = facts.device_ms_per_row()};
  for (const WorkerEndpoint& w : action.workers)
    costs_.cpu_ms_per_row = std::max(costs_.cpu_ms_per_row, w.facts.expert_ms_per_row());
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
      ranks,
      StepStreams::Callbacks{.done =
                                 [this](proto::StepResult result) {
                                   StepEnded();
                                   loop_->PostResult(std::move(result));
                                 },
                             .failed =
                                 [this, generation = action.generation](const std::string& error) {
                                   StepEnded();
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
