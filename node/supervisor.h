// SPDX-License-Identifier: Apache-2.0
#ifndef KT_NODE_SUPERVISOR_H_
#define KT_NODE_SUPERVISOR_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "node/spec.h"

namespace kt {

using TimeMs = int64_t;  // of a monotonic clock

// What the supervisor can do to processes, named by their index in the spec.
class ProcessTable {
 public:
  virtual ~ProcessTable() = default;
  struct Started {
    pid_t pid;
    uint64_t incarnation;  // rises with every start
  };
  virtual absl::StatusOr<Started> Start(size_t index) = 0;
  // To the process; SIGKILL goes to its whole group. Nothing happens if it has ended already.
  virtual void Signal(size_t index, int signal) = 0;
};

struct ProcessExit {
  int code = 0;            // exit code, if signal is 0
  int signal = 0;          // signal that killed it
  std::string last_error;  // sentence it left behind, may be empty
};

enum class ProcessState { kStopped, kRunning, kWaiting, kDegraded };

struct ProcessStatus {
  ProcessState state = ProcessState::kStopped;
  pid_t pid = 0;  // 0: not running
  uint64_t incarnation = 0;
  int restarts = 0;
  std::string last_exit;  // "exit code 3", "signal 9 (Killed)"; empty: never ended
};

// The supervision policy: starts every process, restarts what dies with exponential backoff, gives
// up on a process that keeps dying (restart storm), ends the run when a process fails before the
// first readiness, and stops all in order.
//
// Phases   starting → serving (all that report readiness have done so once) → stopping → over:
// exit_code() has a value. Time     comes in with every event; the owner calls OnTimer at
// NextTimer(). Threads  one. Calls nothing but the process table and the log.
class Supervisor {
 public:
  // `processes` and `table` outlive it.
  Supervisor(const std::vector<ProcessSpec>& processes, RestartPolicy policy, ProcessTable* table);

  void Start(TimeMs now);
  void OnExit(size_t index, const ProcessExit& exit, TimeMs now);
  // True: with this the run is ready for the first time.
  bool OnReady(size_t index, TimeMs now);
  // SIGTERM or SIGINT. The first begins the orderly stop, the second kills everything at once.
  void OnStopSignal(int signal, TimeMs now);
  void OnTimer(TimeMs now);

  std::optional<TimeMs> NextTimer() const;
  std::optional<int> exit_code() const;  // has a value when the run is over
  // Why the run ended by itself; empty if it was asked to.
  const std::string& failure() const { return failure_; }
  const char* phase_name() const;
  const std::vector<ProcessStatus>& statuses() const { return statuses_; }

 private:
  enum class Phase { kStarting, kServing, kStopping, kKilling, kOver };
  struct Process {
    TimeMs started_at = 0;
    TimeMs restart_at = 0;  // in state kWaiting
    int deaths_in_row = 0;
    bool ready_once = false;
    std::deque<TimeMs> restart_times;  // within the policy's window
  };

  void StartProcess(size_t index, TimeMs now);
  void ScheduleRestart(size_t index, TimeMs now);
  void Fail(int code, std::string sentence, TimeMs now);
  void BeginStop(TimeMs now);
  // Signals the lowest stop order that still runs; when none does, the run is over.
  void StopNextStage(TimeMs now);
  void KillAll(TimeMs now);
  bool AnyRunning(std::optional<int> stop_order) const;

  const std::vector<ProcessSpec>& specs_;
  const RestartPolicy policy_;
  ProcessTable* const table_;
  Phase phase_ = Phase::kStarting;
  std::vector<Process> processes_;
  std::vector<ProcessStatus> statuses_;
  int stage_ = 0;              // stop order being stopped
  bool stage_killed_ = false;  // and it has had SIGKILL
  TimeMs stage_deadline_ = 0;  // in kStopping and kKilling
  int exit_code_ = 0;
  std::string failure_;
};

const char* ProcessStateName(ProcessState state);

}  // namespace kt

#endif  // KT_NODE_SUPERVISOR_H_
