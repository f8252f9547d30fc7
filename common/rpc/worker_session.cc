// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/worker_session.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/rpc/handshake.h"
#include "common/rpc/server_runner.h"
#include "common/rpc/status_convert.h"

namespace kt {
namespace {
constexpr absl::Duration kHeartbeat = absl::Seconds(1);
constexpr absl::Duration kProgress = absl::Milliseconds(100);
constexpr auto kRegisterTry = std::chrono::milliseconds(500);
}  // namespace

struct WorkerSession::State {
  absl::Mutex mutex;
  proto::WorkerReport report;
  bool urgent = false;
  bool stopping = false;
  bool failed_sent = false;
  grpc::ClientContext context;
};

absl::StatusOr<std::unique_ptr<WorkerSession>> WorkerSession::Register(
    const std::string& coordinator_address, const Identity& identity, int timeout_ms,
    const std::atomic<bool>& stop, std::function<void()> on_lost) {
  std::unique_ptr<WorkerSession> session(new WorkerSession);
  session->identity_ = identity;
  session->incarnation_ = NewIncarnation();
  session->stub_ = proto::Coordinator::NewStub(InternalChannel(coordinator_address));
  session->on_lost_ = std::move(on_lost);
  proto::RegisterRequest request;
  request.set_kind(identity.kind);
  request.set_index(identity.index);
  request.set_incarnation(session->incarnation_);
  request.set_address(identity.address);
  request.set_protocol_version(kProtocolVersion);
  request.set_build_id(BuildId());
  request.set_packed_layout_version(kPackedLayoutVersion);
  request.set_isa(identity.isa);
  request.set_pid(getpid());
  proto::RegisterReply reply;
  grpc::Status status;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  do {  // short tries, so that a stop is noticed
    if (stop) return Cancelled("register with {}: told to stop", coordinator_address);
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + kRegisterTry);
    status = session->stub_->Register(&context, request, &reply);
  } while (status.error_code() == grpc::DEADLINE_EXCEEDED &&
           std::chrono::steady_clock::now() < deadline);
  if (!status.ok()) return Annotate(FromGrpc(status), "register with " + coordinator_address);
  session->config_ = reply.config();
  session->state_ = std::make_unique<State>();
  proto::WorkerReport& report = session->state_->report;
  report.set_kind(identity.kind);
  report.set_index(identity.index);
  report.set_incarnation(session->incarnation_);
  report.set_state(proto::WORKER_STATE_LOADING);
  session->thread_ = std::thread([s = session.get()] {
    pthread_setname_np(pthread_self(), "kt-session");
    s->Run();
  });
  return session;
}

WorkerSession::~WorkerSession() {
  if (state_ == nullptr) return;  // never registered
  {
    absl::MutexLock lock(&state_->mutex);
    state_->stopping = true;
  }
  if (thread_.joinable()) thread_.join();
}

void WorkerSession::ReportProgress(uint64_t bytes_loaded, uint64_t bytes_total) {
  absl::MutexLock lock(&state_->mutex);
  state_->report.set_bytes_loaded(bytes_loaded);
  state_->report.set_bytes_total(bytes_total);
}

void WorkerSession::ReportReady(const proto::WorkerFacts& facts) {
  absl::MutexLock lock(&state_->mutex);
  state_->report.set_state(proto::WORKER_STATE_READY);
  *state_->report.mutable_facts() = facts;
  state_->urgent = true;
}

void WorkerSession::ReportFailed(const std::string& error) {
  absl::MutexLock lock(&state_->mutex);
  state_->report.set_state(proto::WORKER_STATE_FAILED);
  state_->report.set_error(error);
  state_->urgent = true;
  state_->mutex.AwaitWithTimeout(absl::Condition(&state_->failed_sent), absl::Seconds(2));
}

void WorkerSession::Run() {
  proto::ReportReply reply;
  std::unique_ptr<grpc::ClientWriter<proto::WorkerReport>> writer =
      stub_->Report(&state_->context, &reply);
  bool stopping = false;
  while (!stopping) {
    proto::WorkerReport report;
    {
      absl::MutexLock lock(&state_->mutex);
      State* state = state_.get();
      absl::Duration pause =
          state->report.state() == proto::WORKER_STATE_LOADING ? kProgress : kHeartbeat;
      auto due = [state] { return state->urgent || state->stopping; };
      state->mutex.AwaitWithTimeout(absl::Condition(&due), pause);
      state->urgent = false;
      stopping = state->stopping;
      report = state->report;
    }
    if (stopping) break;
    bool written = writer->Write(report);
    absl::MutexLock lock(&state_->mutex);
    state_->failed_sent = report.state() == proto::WORKER_STATE_FAILED;
    if (!written) break;
  }
  writer->WritesDone();
  if (stopping) state_->context.TryCancel();
  writer->Finish();
  if (!stopping) on_lost_();
}

}  // namespace kt
