// SPDX-License-Identifier: Apache-2.0
#include "worker/worker_main.h"

#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>

#include "absl/synchronization/notification.h"
#include "common/base/exit_code.h"
#include "common/base/status.h"
#include "common/ipc/futex_event.h"
#include "common/observe/log.h"
#include "common/rpc/server_runner.h"
#include "common/rpc/timeline_service.h"
#include "spdlog/spdlog.h"

namespace kt {
namespace {

constexpr int kRegisterTimeoutMs = 60000;

// Blocks the stop signals in every thread; StopSignal's thread waits for them.
class StopSignal {
 public:
  explicit StopSignal(std::function<void()> on_stop) : on_stop_(std::move(on_stop)) {
    sigemptyset(&set_);
    for (int s : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&set_, s);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    signal(SIGPIPE, SIG_IGN);
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "kt-signal");
      int signal_number = 0;
      sigwait(&set_, &signal_number);
      if (signal_number != SIGUSR1) on_stop_();
    });
  }
  ~StopSignal() {
    pthread_kill(thread_.native_handle(), SIGUSR1);
    thread_.join();
  }

 private:
  std::function<void()> on_stop_;
  sigset_t set_;
  std::thread thread_;
};

// Logs how far loading is and at what rate, every few seconds and at its end.
class LoadLog {
 public:
  void Add(uint64_t done, uint64_t total) {
    done_ = done;
    int64_t now = NowUs();
    if (now - last_ < kIntervalUs) return;
    last_ = now;
    spdlog::info("loading: {:.1f} of {:.1f} GB, {:.1f} GB/s", Gigabytes(done), Gigabytes(total),
                 Rate(now));
  }
  void Finish() const {
    spdlog::info("loaded {:.2f} GB in {:.1f} s, {:.1f} GB/s", Gigabytes(done_), Seconds(NowUs()),
                 Rate(NowUs()));
  }

 private:
  static constexpr int64_t kIntervalUs = 5'000'000;
  static double Gigabytes(uint64_t bytes) { return static_cast<double>(bytes) / 1e9; }
  double Seconds(int64_t now) const { return static_cast<double>(now - start_) / 1e6; }
  double Rate(int64_t now) const { return Gigabytes(done_) / std::max(Seconds(now), 1e-6); }

  const int64_t start_ = NowUs();
  int64_t last_ = start_;
  uint64_t done_ = 0;
};

void SetNode(NodeClient client, WorkerContext& context) {
  struct Shared {
    explicit Shared(NodeClient client) : node(std::move(client)) {}
    std::mutex mutex;
    NodeClient node;
  };
  auto shared = std::make_shared<Shared>(std::move(client));
  context.segments = [shared](const std::string& name, size_t bytes) {
    std::lock_guard lock(shared->mutex);
    return shared->node.GetSegment(name, bytes);
  };
  context.put_segment = [shared](const std::string& name, const Segment& segment) {
    std::lock_guard lock(shared->mutex);
    return shared->node.PutSegment(name, segment);
  };
  context.open_segment = [shared](const std::string& name) {
    std::lock_guard lock(shared->mutex);
    return shared->node.OpenSegment(name);
  };
}

}  // namespace

int WorkerMain(
    int argc, char** argv, proto::WorkerKind kind, const std::string& name,
    const std::function<absl::StatusOr<std::unique_ptr<Worker>>(const WorkerContext&)>& make) {
  CLI::App app(name);
  std::string config_path;
  int index = 0;
  app.add_option("--config", config_path,
                 "configuration of the running system; its directory holds the sockets")
      ->required();
  app.add_option("--index", index, "number of this worker")->required()->check(CLI::Range(0, 1023));
  CLI11_PARSE(app, argc, argv);
  const std::string runtime_dir = std::filesystem::path(config_path).parent_path().string();
  const std::string process = fmt::format("{}-{}", name, index);
  if (absl::Status s = SetUpLog(process, "info", "text"); !s.ok()) return FailProcess(s);

  absl::Notification stop;
  std::atomic<bool> stopping{false};
  auto request_stop = [&] {
    if (!stopping.exchange(true)) stop.Notify();
  };
  StopSignal stop_signal(request_stop);

  auto run = [&]() -> absl::Status {
    std::string address = fmt::format("unix:{}/{}.sock", runtime_dir, process);
    KT_ASSIGN_OR_RETURN(Isa isa, SelectIsa());
    KT_ASSIGN_OR_RETURN(NodeClient node, NodeClient::Connect(runtime_dir + "/node.sock"));
    auto on_lost = [&] {
      spdlog::warn("the coordinator has gone; this worker ends and is started again with it");
      request_stop();
    };
    KT_ASSIGN_OR_RETURN(
        auto session, WorkerSession::Register(fmt::format("unix:{}/coordinator.sock", runtime_dir),
                                              {kind, index, address, IsaName(isa)},
                                              kRegisterTimeoutMs, stopping, on_lost));
    const proto::LogOptions& log = session->config().log();
    KT_RETURN_IF_ERROR(SetUpLog(process, log.level(), log.format()));
    auto serve = [&]() -> absl::Status {
      WorkerContext context{.config = session->config(),
                            .index = index,
                            .incarnation = session->incarnation(),
                            .isa = isa};
      SetNode(std::move(node), context);
      KT_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, make(context));
      LoadLog load_log;
      KT_ASSIGN_OR_RETURN(proto::WorkerFacts facts,
                          worker->Load([&](uint64_t done, uint64_t total) {
                            session->ReportProgress(done, total);
                            load_log.Add(done, total);
                          }));
      load_log.Finish();
      TimelineService timeline(process);
      KT_ASSIGN_OR_RETURN(auto server,
                          ServerRunner::Start(address, {worker->service(), &timeline}));
      session->ReportReady(facts);
      stop.WaitForNotification();
      worker->Stop();
      return absl::OkStatus();
    };
    absl::Status status = serve();
    if (!status.ok()) session->ReportFailed(Message(status));
    return status;
  };
  absl::Status status = run();
  return status.ok() || stopping ? kExitOk : FailProcess(status);
}

}  // namespace kt
