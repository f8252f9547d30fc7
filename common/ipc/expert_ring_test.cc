// SPDX-License-Identifier: Apache-2.0
#include "common/ipc/expert_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "common/base/status.h"

namespace kt {
namespace {

constexpr RingShape kShape{
    .workers = 2, .tokens_max = 5, .hidden = 24, .top_k = 3, .activation_bytes = 4};

Segment Same(const Segment& s) {
  return Segment::FromFd(fcntl(s.fd(), F_DUPFD_CLOEXEC, 0), s.size()).value();
}

// Answers every task with rows * (worker + 1) + layer until the ring ends.
void Serve(RingWorker worker, int index) {
  while (true) {
    auto task = worker.Next(5'000'000);
    if (!task.ok() || !task->has_value()) return;
    const RingTask& t = **task;
    for (int i = 0; i < t.tokens * worker.shape().hidden; ++i) {
      t.results[i] = static_cast<const float*>(t.rows)[i] * static_cast<float>(index + 1) +
                     static_cast<float>(t.layer);
    }
    worker.Complete(t, absl::StatusCode::kOk);
  }
}

class ExpertRingTest : public ::testing::Test {
 protected:
  Segment segment_ = Segment::Create("ring-test", RingBytes(kShape)).value();
  RingHost host_ = RingHost::Create(Same(segment_), kShape, {}).value();
  RingWorker Attach(int index) { return RingWorker::Attach(Same(segment_), index, {}).value(); }

  void Exchange(int layer, int tokens) {
    RingTask task = host_.Next();
    for (int i = 0; i < tokens * kShape.hidden; ++i)
      static_cast<float*>(task.rows)[i] = static_cast<float>(i + layer);
    uint32_t sequence = host_.Submit(layer, tokens);
    ASSERT_EQ(Message(host_.Wait(sequence, 10'000'000)), "");
    for (int w = 0; w < kShape.workers; ++w) {
      for (int i = 0; i < tokens * kShape.hidden; ++i) {
        ASSERT_EQ(
            host_.results(w, sequence)[i],
            static_cast<float>(i + layer) * static_cast<float>(w + 1) + static_cast<float>(layer));
      }
    }
  }
};

TEST_F(ExpertRingTest, TasksReachEveryWorkerInOrder) {
  std::thread a(Serve, Attach(0), 0), b(Serve, Attach(1), 1);
  host_.BeginStep();
  for (int i = 0; i < 2000; ++i) Exchange(i % 61, 1 + i % kShape.tokens_max);
  host_.EndStep();
  host_.Abort();
  a.join();
  b.join();
}

TEST_F(ExpertRingTest, WorksBetweenProcessesAndASleepingWorkerWakes) {
  std::vector<pid_t> children;
  for (int w = 0; w < kShape.workers; ++w) {
    children.push_back(fork());
    if (children.back() == 0) {
      Serve(RingWorker::Attach(Same(segment_), w, {.spin_us = 0}).value(), w);
      _exit(0);
    }
  }
  for (int i = 0; i < 200; ++i) Exchange(i, 2);
  host_.Abort();
  for (pid_t child : children) {
    int state = 0;
    ASSERT_EQ(waitpid(child, &state, 0), child);
    EXPECT_EQ(state, 0);
  }
}

TEST_F(ExpertRingTest, KilledWorkerLeavesTheHostWithADeadlineThatNamesIt) {
  std::thread a(Serve, Attach(0), 0);
  pid_t child = fork();
  if (child == 0) {
    RingWorker worker = RingWorker::Attach(Same(segment_), 1, {}).value();
    (void)worker.Next(10'000'000);
    pause();
  }
  host_.Next();
  uint32_t sequence = host_.Submit(0, 1);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  absl::Status status = host_.Wait(sequence, 50'000);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(Message(status).find("worker 1"), std::string::npos);
  host_.Abort();
  a.join();
}

TEST_F(ExpertRingTest, AbortReleasesAWaitingHostAndTheWorkers) {
  RingWorker idle = Attach(0);
  host_.Next();
  uint32_t sequence = host_.Submit(0, 1);
  std::thread aborter([&] { host_.Abort(); });
  EXPECT_EQ(host_.Wait(sequence, 10'000'000).code(), absl::StatusCode::kAborted);
  aborter.join();
  EXPECT_EQ(idle.Next(10'000'000).status().code(), absl::StatusCode::kAborted);
}

TEST_F(ExpertRingTest, AnErrorOfAWorkerReachesTheHost) {
  RingWorker a = Attach(0), b = Attach(1);
  host_.Next();
  uint32_t sequence = host_.Submit(0, 1);
  for (RingWorker* w : {&a, &b})
    w->Complete(*w->Next(1'000'000).value(),
                w == &b ? absl::StatusCode::kInternal : absl::StatusCode::kOk);
  EXPECT_EQ(host_.Wait(sequence, 1'000'000).code(), absl::StatusCode::kUnavailable);
}

TEST_F(ExpertRingTest, ADoorbellOrSlotThatIsWrongIsRefused) {
  RingWorker worker = Attach(0);
  std::mt19937 rng(7);
  for (int i = 0; i < 200;
       ++i) {  // the header's counters and the first slot's descriptor, overwritten at random
    for (int n = 0; n < 8; ++n) segment_.data()[64 + rng() % 200] = static_cast<uint8_t>(rng());
    auto task = worker.Next(0);
    if (task.ok() && task->has_value()) {
      EXPECT_LE((*task)->tokens, kShape.tokens_max);
    }
  }
}

TEST(ExpertRingShapeTest, HeadersThatContradictTheMappingAreRefused) {
  Segment segment = Segment::Create("ring-test", RingBytes(kShape)).value();
  ASSERT_TRUE(RingHost::Create(Same(segment), kShape, {}).ok());
  ASSERT_TRUE(ReadRingShape(segment.data(), segment.size()).ok());
  EXPECT_FALSE(RingWorker::Attach(Same(segment), 2, {}).ok());
  EXPECT_FALSE(ReadRingShape(segment.data(), RingBytes(kShape) - 1).ok());
  EXPECT_FALSE(RingHost::Create(Same(segment), kShape, {}).ok()) << "a ring is made once";
  for (size_t byte = 0; byte < 48; ++byte) {
    segment.data()[byte] ^= 0x41;
    bool shape_is_checked = byte < 40;  // the rest is padding
    EXPECT_EQ(ReadRingShape(segment.data(), segment.size()).ok(), !shape_is_checked) << byte;
    segment.data()[byte] ^= 0x41;
  }
}

}  // namespace
}  // namespace kt
