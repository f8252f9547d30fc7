// SPDX-License-Identifier: Apache-2.0
// Round trip of an empty expert task (one row, no expert) between two processes while a step is
// active: shared-memory ring with the product's waiting policy against the gRPC stream, interleaved
// in one run. Prints JSON, microseconds.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "common/base/status.h"
#include "common/rpc/server_runner.h"
#include "cpu_expert_worker/expert_service.h"
#include "gpu_worker/expert_client/expert_channel.h"

namespace {

constexpr kt::RingShape kShape{
    .workers = 1, .tokens_max = 16, .hidden = 576, .top_k = 8, .activation_bytes = 2};
constexpr int kRounds = 40, kTasksPerRound = 500;

kt::Segment Mapping(int fd) {
  return kt::Segment::FromFd(fcntl(fd, F_DUPFD_CLOEXEC, 0), kt::RingBytes(kShape)).value();
}

absl::Status Empty(const kt::ExpertTask& task) {
  std::memset(task.results, 0,
              static_cast<size_t>(task.tokens) * static_cast<size_t>(kShape.hidden) * 4);
  return absl::OkStatus();
}

[[noreturn]] void Serve(const std::string& address, int fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  kt::ExpertService service(
      0, kShape, {}, Empty,
      [fd](const std::string&, size_t) -> absl::StatusOr<kt::Segment> { return Mapping(fd); },
      [] {}, [](bool) { return kt::proto::SelfCheckReply(); });
  auto server = kt::ServerRunner::Start(address, {&service});
  if (!server.ok()) _exit(1);
  pause();
  _exit(0);
}

// Adds kTasksPerRound round trips; false if the channel failed.
bool Measure(kt::ExpertChannel& channel, std::vector<double>& us) {
  channel.BeginStep();
  for (int i = 0; i < kTasksPerRound; ++i) {
    kt::ExpertChannel::Buffers b = channel.Next();
    std::fill_n(b.ids, kShape.top_k, -1);
    auto start = std::chrono::steady_clock::now();
    auto ticket = channel.Submit(0, 1);
    if (!ticket.ok() || !channel.Wait(*ticket, 5'000'000).ok()) return false;
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                     .count());
  }
  channel.EndStep();
  return true;
}

void Print(const char* name, std::vector<double>& us, const char* end) {
  std::sort(us.begin(), us.end());
  auto at = [&](double q) {
    return us[static_cast<size_t>(q * static_cast<double>(us.size() - 1))];
  };
  std::printf("  \"%s\": {\"median\": %.2f, \"p10\": %.2f, \"p90\": %.2f, \"p99\": %.2f}%s\n", name,
              at(0.5), at(0.1), at(0.9), at(0.99), end);
}

}  // namespace

int main() {
  char dir[] = "/tmp/kt-bench-XXXXXX";
  if (mkdtemp(dir) == nullptr) return 1;
  const std::string address = std::string("unix:") + dir + "/worker";
  auto segment = kt::Segment::Create("bench-ring", kt::RingBytes(kShape));
  if (!segment.ok()) return 1;
  pid_t child = fork();
  if (child == 0) Serve(address, segment->fd());

  auto run = [&]() -> absl::Status {
    KT_ASSIGN_OR_RETURN(kt::RingHost host,
                        kt::RingHost::Create(Mapping(segment->fd()), kShape, {}));
    auto stub = kt::proto::CpuExpertWorker::NewStub(kt::InternalChannel(address));
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    kt::proto::AttachRingRequest request;
    request.mutable_ring()->set_bytes(kt::RingBytes(kShape));
    kt::proto::AttachRingReply reply;
    if (grpc::Status s = stub->AttachRing(&context, request, &reply); !s.ok())
      return kt::Internal("attach: {}", s.error_message());
    std::unique_ptr<kt::ExpertChannel> ring = kt::MakeRingChannel(std::move(host));
    KT_ASSIGN_OR_RETURN(std::unique_ptr<kt::ExpertChannel> stream,
                        kt::MakeGrpcChannel({address}, kShape));
    std::vector<double> ring_us, stream_us;
    for (int i = 0; i < kRounds; ++i) {
      if (!Measure(*ring, ring_us) || !Measure(*stream, stream_us))
        return kt::Internal("a task got no answer");
    }
    std::printf("{\n");
    Print("ring", ring_us, ",");
    Print("grpc_stream", stream_us, "");
    std::printf("}\n");
    return absl::OkStatus();
  };
  absl::Status status = run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", kt::Message(status).c_str());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  unlink((std::string(dir) + "/worker").c_str());
  rmdir(dir);
  return status.ok() ? 0 : 1;
}
