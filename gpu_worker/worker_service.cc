// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/worker_service.h"

#include <thread>

#include "common/base/status.h"
#include "common/rpc/status_convert.h"
#include "worker/layer_facts.h"

namespace kt {

grpc::Status WorkerService::AttachExperts(grpc::ServerContext*,
                                          const proto::AttachExpertsRequest* request,
                                          proto::AttachExpertsReply* reply) {
  absl::MutexLock lock(&attach_mutex_);
  if (request->generation() < generation_) {
    return ToGrpc(FailedPrecondition("attach experts: generation {} is older than {}",
                                     request->generation(), generation_));
  }
  if (request->generation() > generation_) {
    if (absl::Status s = Attach(*request, last_reply_); !s.ok()) return ToGrpc(s);
    generation_ = request->generation();
  }
  *reply = last_reply_;
  return grpc::Status::OK;
}

absl::Status WorkerService::Attach(const proto::AttachExpertsRequest& request,
                                   proto::AttachExpertsReply& reply) {
  reply.Clear();
  // First of all: whoever waits for a rank that has gone is released, and plans of the generation
  // before are not run with what is made now.
  SetStream(nullptr);
  engine_->SetGroup(nullptr);
  KT_RETURN_IF_ERROR(AttachExpertWorkers(request, reply));
  return group_.size > 1 ? JoinGroup(request.generation(), reply) : absl::OkStatus();
}

absl::Status WorkerService::JoinGroup(uint64_t generation, proto::AttachExpertsReply& reply) {
  const std::string name = fmt::format("collective-{}", generation);
  KT_ASSIGN_OR_RETURN(Segment segment, segments_(name, LocalGroupBytes(group_.size)));
  KT_ASSIGN_OR_RETURN(std::shared_ptr<Collective> group,
                      JoinLocalGroup(std::make_shared<Segment>(std::move(segment)), group_));
  reply.set_collective_segment(name);
  engine_->SetGroup(std::move(group));
  return absl::OkStatus();
}

absl::Status WorkerService::AttachExpertWorkers(const proto::AttachExpertsRequest& request,
                                                proto::AttachExpertsReply& reply) {
  if (request.workers_size() != ring_shape_.workers) {
    return FailedPrecondition("attach experts: {} workers, configured are {}",
                              request.workers_size(), ring_shape_.workers);
  }
  if (group_.rank == 0) KT_RETURN_IF_ERROR(AttachChannel(request, reply));
  KT_ASSIGN_OR_RETURN(std::shared_ptr<const ExpertArenas> arenas, arenas_(request));
  if (arenas == nullptr) return absl::OkStatus();
  KT_ASSIGN_OR_RETURN(*reply.mutable_layerwise(), SetArenas(std::move(arenas)));
  return absl::OkStatus();
}

// Ends the old channel, and with it a step that waits on it.
absl::Status WorkerService::AttachChannel(const proto::AttachExpertsRequest& request,
                                          proto::AttachExpertsReply& reply) {
  if (request.transport() == "grpc") {
    std::vector<std::string> targets;
    for (const auto& w : request.workers()) targets.push_back(w.address());
    KT_ASSIGN_OR_RETURN(std::shared_ptr<ExpertChannel> channel,
                        MakeGrpcChannel(targets, ring_shape_));
    engine_->SetChannel(std::move(channel));
    return absl::OkStatus();
  }
  if (request.transport() != "ring") {
    return InvalidArgument("attach experts: transport '{}' is not known; ring and grpc are",
                           request.transport());
  }
  std::string name = fmt::format("expert-ring-{}", request.generation());
  KT_ASSIGN_OR_RETURN(Segment segment, segments_(name, RingBytes(ring_shape_)));
  KT_ASSIGN_OR_RETURN(RingHost ring, RingHost::Create(std::move(segment), ring_shape_, policy_));
  reply.mutable_ring()->set_segment(name);
  reply.mutable_ring()->set_bytes(RingBytes(ring_shape_));
  engine_->SetChannel(MakeRingChannel(std::move(ring)));
  return absl::OkStatus();
}

absl::StatusOr<proto::LayerwiseFacts> WorkerService::SetArenas(
    std::shared_ptr<const ExpertArenas> arenas) {
  absl::MutexLock lock(&step_mutex_);
  absl::StatusOr<proto::LayerwiseFacts> facts;
  // On a thread of its own, which is pinned as those that run steps are.
  std::thread([&] {
    on_step_thread_();
    facts = engine_->SetArenas(std::move(arenas), measure_);
  }).join();
  return facts;
}

grpc::Status WorkerService::DetachExperts(grpc::ServerContext*,
                                          const proto::DetachExpertsRequest* request,
                                          proto::DetachExpertsReply*) {
  absl::MutexLock lock(&attach_mutex_);
  if (request->generation() < generation_) return grpc::Status::OK;
  engine_->SetGroup(nullptr);
  engine_->SetChannel(nullptr);
  return ToGrpc(SetArenas(nullptr).status());
}

grpc::Status WorkerService::RunSteps(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<proto::StepResult, proto::StepPlan>* stream) {
  SetStream(context);
  on_step_thread_();
  proto::StepPlan plan;
  while (stream->Read(&plan)) {
    absl::MutexLock lock(&step_mutex_);
    if (!IsStream(context)) break;
    if (!stream->Write(engine_->RunStep(plan))) break;
  }
  absl::MutexLock lock(&stream_mutex_);
  if (current_ == context) current_ = nullptr;
  return grpc::Status::OK;
}

void WorkerService::SetStream(grpc::ServerContext* context) {
  absl::MutexLock lock(&stream_mutex_);
  if (current_ != nullptr) current_->TryCancel();
  current_ = context;
}

bool WorkerService::IsStream(grpc::ServerContext* context) {
  absl::MutexLock lock(&stream_mutex_);
  return current_ == context;
}

grpc::Status WorkerService::SelfCheck(grpc::ServerContext*, const proto::SelfCheckRequest* request,
                                      proto::SelfCheckReply* reply) {
  absl::MutexLock lock(&step_mutex_);
  auto rows = self_check_(request->all_layers());
  if (!rows.ok()) return ToGrpc(rows.status());
  *reply = ToReply(*rows);
  return grpc::Status::OK;
}

}  // namespace kt
