// SPDX-License-Identifier: Apache-2.0
#include "node/supervisor.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "common/base/exit_code.h"
#include "common/base/status.h"

namespace kt {
namespace {

constexpr TimeMs kKillTimeoutMs =
    10000;  // a process in the kernel can outlive SIGKILL for a while; the run does not wait longer

std::string Describe(const ProcessExit& exit) {
  if (exit.signal != 0) return fmt::format("signal {} ({})", exit.signal, strsignal(exit.signal));
  return fmt::format("exit code {}", exit.code);
}

}  // namespace

const char* ProcessStateName(ProcessState state) {
  switch (state) {
    case ProcessState::kStopped:
      return "stopped";
    case ProcessState::kRunning:
      return "running";
    case ProcessState::kWaiting:
      return "waiting";
    case ProcessState::kDegraded:
      return "degraded";
  }
  return "unknown";
}

Supervisor::Supervisor(const std::vector<ProcessSpec>& processes, RestartPolicy policy,
                       ProcessTable* table)
    : specs_(processes),
      policy_(policy),
      table_(table),
      processes_(processes.size()),
      statuses_(processes.size()) {}

void Supervisor::Start(TimeMs now) {
  for (size_t i = 0; i < specs_.size() && phase_ == Phase::kStarting; ++i) StartProcess(i, now);
}

void Supervisor::StartProcess(size_t index, TimeMs now) {
  absl::StatusOr<ProcessTable::Started> started = table_->Start(index);
  ProcessStatus& status = statuses_[index];
  if (!started.ok()) {
    status.state = ProcessState::kStopped;
    spdlog::error("{} cannot be started: {}", specs_[index].name, Message(started.status()));
    if (phase_ == Phase::kStarting) {
      Fail(kExitFailure, Message(started.status()), now);
    } else {
      ScheduleRestart(index, now);
    }
    return;
  }
  status.state = ProcessState::kRunning;
  status.pid = started->pid;
  status.incarnation = started->incarnation;
  processes_[index].started_at = now;
  spdlog::info("started {} pid={} incarnation={}", specs_[index].name, status.pid,
               status.incarnation);
}

void Supervisor::OnExit(size_t index, const ProcessExit& exit, TimeMs now) {
  ProcessStatus& status = statuses_[index];
  status.state = ProcessState::kStopped;
  status.pid = 0;
  status.last_exit = Describe(exit);
  const std::string& name = specs_[index].name;
  if (phase_ >= Phase::kStopping) {
    spdlog::info("{} ended with {}", name, status.last_exit);
    if (phase_ != Phase::kOver &&
        !AnyRunning(phase_ == Phase::kStopping ? std::optional(stage_) : std::nullopt)) {
      StopNextStage(now);
    }
    return;
  }
  if (phase_ == Phase::kStarting && exit.signal == 0 && exit.code != 0) {
    // It has said why; starting it again would only say it again.
    std::string why =
        fmt::format("{} ended with exit code {} before the server was ready", name, exit.code);
    Fail(exit.code, exit.last_error.empty() ? why : exit.last_error, now);
    return;
  }
  spdlog::warn("{} ended with {}", name, status.last_exit);
  ScheduleRestart(index, now);
}

void Supervisor::ScheduleRestart(size_t index, TimeMs now) {
  Process& process = processes_[index];
  ProcessStatus& status = statuses_[index];
  const ProcessSpec& spec = specs_[index];
  if (now - process.started_at >= policy_.healthy_ms) process.deaths_in_row = 0;
  std::deque<TimeMs>& times = process.restart_times;
  while (!times.empty() && now - times.front() >= policy_.window_ms) times.pop_front();
  if (static_cast<int>(times.size()) >= policy_.restarts_max) {
    std::string storm =
        fmt::format("restart storm: {} was restarted {} times within {} s and ended again with {}",
                    spec.name, times.size(), policy_.window_ms / 1000, status.last_exit);
    if (spec.critical || phase_ == Phase::kStarting) {
      Fail(kExitFailure, storm, now);
    } else {
      status.state = ProcessState::kDegraded;
      spdlog::error("degraded: {}; it is not restarted any more", storm);
    }
    return;
  }
  int doublings = std::min(process.deaths_in_row++, 30);
  TimeMs delay = std::min(policy_.backoff_first_ms << doublings, policy_.backoff_max_ms);
  times.push_back(now);
  ++status.restarts;
  status.state = ProcessState::kWaiting;
  process.restart_at = now + delay;
  spdlog::warn("{} will be restarted in {} ms (restart {})", spec.name, delay, status.restarts);
}

bool Supervisor::OnReady(size_t index, TimeMs now) {
  processes_[index].ready_once = true;
  spdlog::info("{} is ready", specs_[index].name);
  if (phase_ != Phase::kStarting) return false;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].reports_ready && !processes_[i].ready_once) return false;
  }
  phase_ = Phase::kServing;
  return true;
}

void Supervisor::OnStopSignal(int signal, TimeMs now) {
  if (phase_ == Phase::kOver || phase_ == Phase::kKilling) return;
  if (phase_ == Phase::kStopping) {
    spdlog::warn("second stop signal: killing all processes");
    if (failure_.empty()) exit_code_ = kExitInterrupted;
    KillAll(now);
    return;
  }
  exit_code_ = signal == SIGINT ? kExitInterrupted : kExitOk;
  spdlog::info("stopping ({}); again to kill at once", strsignal(signal));
  BeginStop(now);
}

void Supervisor::Fail(int code, std::string sentence, TimeMs now) {
  exit_code_ = code;
  failure_ = std::move(sentence);
  spdlog::error("the run ends: {}", failure_);
  BeginStop(now);
}

void Supervisor::BeginStop(TimeMs now) {
  phase_ = Phase::kStopping;
  for (ProcessStatus& status : statuses_) {
    if (status.state == ProcessState::kWaiting) status.state = ProcessState::kStopped;
  }
  StopNextStage(now);
}

void Supervisor::StopNextStage(TimeMs now) {
  if (!AnyRunning(std::nullopt)) {
    phase_ = Phase::kOver;
    return;
  }
  if (phase_ == Phase::kKilling) return;
  stage_ = INT32_MAX;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (statuses_[i].state == ProcessState::kRunning)
      stage_ = std::min(stage_, specs_[i].stop_order);
  }
  stage_killed_ = false;
  TimeMs timeout = 0;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (statuses_[i].state != ProcessState::kRunning || specs_[i].stop_order != stage_) continue;
    table_->Signal(i, SIGTERM);
    timeout = std::max(timeout, specs_[i].stop_timeout_ms);
  }
  stage_deadline_ = now + timeout;
}

void Supervisor::KillAll(TimeMs now) {
  phase_ = Phase::kKilling;
  stage_deadline_ = now + kKillTimeoutMs;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (statuses_[i].state == ProcessState::kRunning) table_->Signal(i, SIGKILL);
  }
}

void Supervisor::OnTimer(TimeMs now) {
  if (phase_ <= Phase::kServing) {
    for (size_t i = 0; i < specs_.size() && phase_ <= Phase::kServing; ++i) {
      if (statuses_[i].state == ProcessState::kWaiting && processes_[i].restart_at <= now)
        StartProcess(i, now);
    }
    return;
  }
  if (phase_ == Phase::kOver || now < stage_deadline_) return;
  if (phase_ == Phase::kKilling || stage_killed_) {
    spdlog::error("some processes outlive SIGKILL; the run ends without them");
    if (exit_code_ == kExitOk) exit_code_ = kExitFailure;
    phase_ = Phase::kOver;
    return;
  }
  stage_killed_ = true;
  stage_deadline_ = now + kKillTimeoutMs;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (statuses_[i].state != ProcessState::kRunning || specs_[i].stop_order != stage_) continue;
    spdlog::warn("{} did not stop within {} ms: killed", specs_[i].name, specs_[i].stop_timeout_ms);
    table_->Signal(i, SIGKILL);
  }
}

std::optional<TimeMs> Supervisor::NextTimer() const {
  if (phase_ == Phase::kOver) return std::nullopt;
  if (phase_ >= Phase::kStopping) return stage_deadline_;
  std::optional<TimeMs> next;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (statuses_[i].state != ProcessState::kWaiting) continue;
    next = std::min(next.value_or(processes_[i].restart_at), processes_[i].restart_at);
  }
  return next;
}

std::optional<int> Supervisor::exit_code() const {
  if (phase_ != Phase::kOver) return std::nullopt;
  return exit_code_;
}

const char* Supervisor::phase_name() const {
  auto degraded = [](const ProcessStatus& status) {
    return status.state == ProcessState::kDegraded;
  };
  switch (phase_) {
    case Phase::kStarting:
      return "starting";
    case Phase::kServing:
      return std::any_of(statuses_.begin(), statuses_.end(), degraded) ? "degraded" : "serving";
    default:
      return "stopping";
  }
}

bool Supervisor::AnyRunning(std::optional<int> stop_order) const {
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (statuses_[i].state == ProcessState::kRunning &&
        (!stop_order || specs_[i].stop_order == *stop_order))
      return true;
  }
  return false;
}

}  // namespace kt
