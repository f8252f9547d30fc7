// SPDX-License-Identifier: Apache-2.0
#include "node/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <random>
#include <utility>

#include "common/base/status.h"

namespace kt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class FakeTable : public ProcessTable {
 public:
  absl::StatusOr<Started> Start(size_t index) override {
    if (fail_start) return Internal("fork: no luck");
    starts.push_back(index);
    return Started{static_cast<pid_t>(100 + starts.size()), starts.size()};
  }
  void Signal(size_t index, int signal) override { signals.emplace_back(index, signal); }

  bool fail_start = false;
  std::vector<size_t> starts;
  std::vector<std::pair<size_t, int>> signals;
};

constexpr size_t kCoordinator = 0;
constexpr size_t kGpu = 1;
constexpr size_t kCpu = 2;
const ProcessExit kKilled{0, SIGKILL, ""};

std::vector<ProcessSpec> ThreeProcesses() {
  ProcessSpec coordinator{"coordinator", {"c"}};
  coordinator.critical = true;
  coordinator.reports_ready = true;
  coordinator.stop_timeout_ms = 20000;
  ProcessSpec gpu{"gpu", {"g"}};
  gpu.stop_order = 1;
  ProcessSpec cpu{"cpu", {"w"}};
  cpu.stop_order = 1;
  cpu.stop_timeout_ms = 5000;
  return {coordinator, gpu, cpu};
}

class SupervisorTest : public ::testing::Test {
 protected:
  void StartReady() {
    supervisor_.Start(now_);
    EXPECT_TRUE(supervisor_.OnReady(kCoordinator, now_));
  }
  void Die(size_t index, ProcessExit exit = kKilled) { supervisor_.OnExit(index, exit, now_); }
  // Advances to the next timer, serves it and returns how long that took.
  TimeMs Wait() {
    TimeMs next = supervisor_.NextTimer().value();
    TimeMs waited = next - std::exchange(now_, next);
    supervisor_.OnTimer(now_);
    return waited;
  }
  ProcessState State(size_t index) const { return supervisor_.statuses()[index].state; }

  TimeMs now_ = 1000;
  std::vector<ProcessSpec> specs_ = ThreeProcesses();
  FakeTable table_;
  Supervisor supervisor_{specs_, RestartPolicy{}, &table_};
};

TEST_F(SupervisorTest, StartsAllAndSleepsWhileTheyRun) {
  StartReady();
  EXPECT_THAT(table_.starts, ElementsAre(kCoordinator, kGpu, kCpu));
  EXPECT_EQ(supervisor_.NextTimer(), std::nullopt);
  EXPECT_STREQ(supervisor_.phase_name(), "serving");
  EXPECT_FALSE(supervisor_.OnReady(kCoordinator, now_)) << "only the first readiness counts";
}

TEST_F(SupervisorTest, RestartsWithDoublingBackoff) {
  StartReady();
  for (TimeMs expected : {100, 200, 400, 800, 1600}) {
    Die(kGpu);
    EXPECT_EQ(State(kGpu), ProcessState::kWaiting);
    EXPECT_EQ(Wait(), expected);
    EXPECT_EQ(State(kGpu), ProcessState::kRunning);
  }
  EXPECT_EQ(supervisor_.statuses()[kGpu].restarts, 5);
  EXPECT_EQ(supervisor_.statuses()[kGpu].last_exit, "signal 9 (Killed)");
}

TEST_F(SupervisorTest, TimerBeforeItsTimeStartsNothing) {
  StartReady();
  Die(kGpu);
  supervisor_.OnTimer(now_ + 99);
  EXPECT_EQ(State(kGpu), ProcessState::kWaiting);
  supervisor_.OnTimer(now_ + 100);
  EXPECT_EQ(State(kGpu), ProcessState::kRunning);
}

TEST_F(SupervisorTest, HealthyTimeResetsTheBackoff) {
  StartReady();
  for (int i = 0; i < 20; ++i) {
    now_ += 30000;
    Die(kGpu);
    EXPECT_EQ(Wait(), 100);
  }
  EXPECT_STREQ(supervisor_.phase_name(), "serving");
}

TEST_F(SupervisorTest, BackoffIsBounded) {
  StartReady();
  for (int i = 0; i < 40; ++i) {
    now_ += 20000;  // not healthy, but no storm either
    Die(kGpu);
    EXPECT_LE(Wait(), 10000);
  }
  Die(kGpu);
  EXPECT_EQ(Wait(), 10000);
}

TEST_F(SupervisorTest, RestartStormDegradesAndTheOthersGoOn) {
  StartReady();
  for (int i = 0; i < 5; ++i) {
    Die(kCpu);
    Wait();
  }
  Die(kCpu);
  EXPECT_EQ(State(kCpu), ProcessState::kDegraded);
  EXPECT_EQ(supervisor_.NextTimer(), std::nullopt);
  EXPECT_STREQ(supervisor_.phase_name(), "degraded");
  Die(kGpu);
  EXPECT_EQ(Wait(), 100);
  EXPECT_EQ(supervisor_.exit_code(), std::nullopt);
}

TEST_F(SupervisorTest, RestartStormOfACriticalProcessEndsTheRun) {
  StartReady();
  for (int i = 0; i < 5; ++i) {
    Die(kCoordinator);
    Wait();
  }
  Die(kCoordinator);
  EXPECT_THAT(table_.signals, ElementsAre(Pair(kGpu, SIGTERM), Pair(kCpu, SIGTERM)));
  Die(kGpu);
  Die(kCpu);
  EXPECT_EQ(supervisor_.exit_code(), 1);
  EXPECT_THAT(supervisor_.failure(), HasSubstr("restart storm"));
}

TEST_F(SupervisorTest, FailureBeforeReadinessEndsTheRunWithItsCodeAndSentence) {
  supervisor_.Start(now_);
  Die(kGpu, {3, 0, "config.json: num_experts is missing"});
  EXPECT_THAT(table_.signals, ElementsAre(Pair(kCoordinator, SIGTERM)));
  Die(kCoordinator, {0, 0, ""});
  EXPECT_THAT(table_.signals, ElementsAre(Pair(kCoordinator, SIGTERM), Pair(kCpu, SIGTERM)));
  Die(kCpu);
  EXPECT_EQ(supervisor_.exit_code(), 3);
  EXPECT_EQ(supervisor_.failure(), "config.json: num_experts is missing");
}

TEST_F(SupervisorTest, KilledBeforeReadinessIsRestarted) {
  supervisor_.Start(now_);
  Die(kGpu);
  EXPECT_EQ(Wait(), 100);
  EXPECT_EQ(State(kGpu), ProcessState::kRunning);
}

TEST_F(SupervisorTest, NonZeroExitAfterReadinessIsRestarted) {
  StartReady();
  Die(kGpu, {5, 0, "no memory"});
  EXPECT_EQ(Wait(), 100);
  EXPECT_EQ(supervisor_.statuses()[kGpu].last_exit, "exit code 5");
}

TEST_F(SupervisorTest, ForkFailureAtStartEndsTheRun) {
  table_.fail_start = true;
  supervisor_.Start(now_);
  EXPECT_EQ(supervisor_.exit_code(), 1);
  EXPECT_THAT(table_.signals, IsEmpty());
}

TEST_F(SupervisorTest, StopsInOrder) {
  StartReady();
  supervisor_.OnStopSignal(SIGTERM, now_);
  EXPECT_THAT(table_.signals, ElementsAre(Pair(kCoordinator, SIGTERM)));
  EXPECT_EQ(supervisor_.NextTimer(), now_ + 20000);
  Die(kGpu);  // a worker that dies meanwhile stays dead
  Die(kCoordinator, {0, 0, ""});
  EXPECT_THAT(table_.signals, ElementsAre(Pair(kCoordinator, SIGTERM), Pair(kCpu, SIGTERM)));
  EXPECT_EQ(supervisor_.NextTimer(), now_ + 5000);
  Die(kCpu, {0, 0, ""});
  EXPECT_EQ(supervisor_.exit_code(), 0);
  EXPECT_EQ(supervisor_.failure(), "");
}

TEST_F(SupervisorTest, KillsWhatDoesNotStopInTime) {
  StartReady();
  supervisor_.OnStopSignal(SIGTERM, now_);
  EXPECT_EQ(Wait(), 20000);
  EXPECT_THAT(table_.signals,
              ElementsAre(Pair(kCoordinator, SIGTERM), Pair(kCoordinator, SIGKILL)));
  Die(kCoordinator);
  table_.signals.clear();
  EXPECT_EQ(Wait(), 10000);  // the longest of the stage
  EXPECT_THAT(table_.signals, ElementsAre(Pair(kGpu, SIGKILL), Pair(kCpu, SIGKILL)));
  Die(kGpu);
  Die(kCpu);
  EXPECT_EQ(supervisor_.exit_code(), 0);
}

TEST_F(SupervisorTest, SecondSignalKillsAllAtOnce) {
  StartReady();
  supervisor_.OnStopSignal(SIGINT, now_);
  table_.signals.clear();
  supervisor_.OnStopSignal(SIGINT, now_);
  EXPECT_THAT(table_.signals,
              ElementsAre(Pair(kCoordinator, SIGKILL), Pair(kGpu, SIGKILL), Pair(kCpu, SIGKILL)));
  supervisor_.OnStopSignal(SIGINT, now_);
  EXPECT_EQ(table_.signals.size(), 3u);
  for (size_t i : {kCoordinator, kGpu, kCpu}) Die(i);
  EXPECT_EQ(supervisor_.exit_code(), 130);
}

TEST_F(SupervisorTest, ProcessThatOutlivesSigkillDoesNotHoldTheRun) {
  StartReady();
  supervisor_.OnStopSignal(SIGTERM, now_);
  supervisor_.OnStopSignal(SIGTERM, now_);
  EXPECT_EQ(Wait(), 10000);
  EXPECT_EQ(supervisor_.exit_code(), 130);
}

TEST_F(SupervisorTest, StopCancelsPendingRestarts) {
  StartReady();
  Die(kGpu);
  supervisor_.OnStopSignal(SIGTERM, now_);
  EXPECT_EQ(State(kGpu), ProcessState::kStopped);
  Die(kCoordinator, {0, 0, ""});
  Die(kCpu, {0, 0, ""});
  EXPECT_EQ(supervisor_.exit_code(), 0);
  EXPECT_EQ(table_.starts.size(), 3u);
}

// Thousands of random events: the invariants that every caller relies on.
TEST(SupervisorSimulation, EveryRunEndsAndNoProcessIsLost) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    std::vector<ProcessSpec> specs = ThreeProcesses();
    FakeTable table;
    Supervisor supervisor(specs, RestartPolicy{}, &table);
    TimeMs now = 0;
    supervisor.Start(now);
    for (int step = 0; step < 200 && !supervisor.exit_code(); ++step) {
      size_t index = random() % specs.size();
      bool running = supervisor.statuses()[index].state == ProcessState::kRunning;
      switch (random() % 8) {
        case 0:
        case 1:
        case 2:
          if (running)
            supervisor.OnExit(index, random() % 4 == 0 ? ProcessExit{3, 0, ""} : kKilled, now);
          break;
        case 3:
          if (running && specs[index].reports_ready) supervisor.OnReady(index, now);
          break;
        case 4:
          if (random() % 20 == 0) supervisor.OnStopSignal(SIGTERM, now);
          break;
        default:
          now += static_cast<TimeMs>(random() % 15000);
          supervisor.OnTimer(now);
      }
    }
    for (int signal = 0; signal < 2 && !supervisor.exit_code(); ++signal)
      supervisor.OnStopSignal(SIGTERM, now);
    for (size_t i = 0; i < specs.size(); ++i) {
      if (supervisor.statuses()[i].state == ProcessState::kRunning)
        supervisor.OnExit(i, kKilled, now);
    }
    ASSERT_TRUE(supervisor.exit_code().has_value()) << "seed " << seed;
    for (const ProcessStatus& status : supervisor.statuses()) {
      ASSERT_EQ(status.pid, 0) << "seed " << seed;
      ASSERT_NE(status.state, ProcessState::kRunning) << "seed " << seed;
      ASSERT_NE(status.state, ProcessState::kWaiting) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace kt
