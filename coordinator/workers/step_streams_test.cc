// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/step_streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "common/rpc/server_runner.h"

namespace kt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A rank whose answers the test gives.
class FakeRank final : public proto::GpuWorker::Service {
 public:
  grpc::Status RunSteps(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<proto::StepResult, proto::StepPlan>* stream) override {
    {
      absl::MutexLock lock(&mutex_);
      stream_ = stream;
    }
    proto::StepPlan plan;
    while (stream->Read(&plan)) {
      absl::MutexLock lock(&mutex_);
      step_ = plan.step_id();
    }
    absl::MutexLock lock(&mutex_);
    stream_ = nullptr;
    return grpc::Status::OK;
  }
  void Await(uint64_t step) {
    absl::MutexLock lock(&mutex_);
    auto there = [&] { return step_ == step; };
    mutex_.Await(absl::Condition(&there));
  }
  void Answer(uint64_t step, const std::string& error = "") {
    absl::MutexLock lock(&mutex_);
    auto open = [&] { return stream_ != nullptr; };
    mutex_.Await(absl::Condition(&open));
    proto::StepResult result;
    result.set_step_id(step);
    result.set_error(error);
    if (tokens_ > 0) result.add_sequences()->set_token_id(tokens_);
    stream_->Write(result);
  }
  void SetTokens(int token) { tokens_ = token; }

 private:
  absl::Mutex mutex_;
  grpc::ServerReaderWriter<proto::StepResult, proto::StepPlan>* stream_ = nullptr;
  uint64_t step_ = 0;
  int tokens_ = 0;
};

class StepStreamsTest : public ::testing::Test {
 protected:
  void Start(int ranks) {
    std::vector<std::string> addresses;
    for (int r = 0; r < ranks; ++r) {
      addresses.push_back("unix:" + ::testing::TempDir() + "ranks-" + std::to_string(getpid()) +
                          "-" + std::to_string(r));
      ranks_.push_back(std::make_unique<FakeRank>());
      servers_.push_back(ServerRunner::Start(addresses.back(), {ranks_.back().get()}).value());
    }
    ranks_[0]->SetTokens(7);
    streams_ = std::make_unique<StepStreams>(
        addresses, StepStreams::Callbacks{.done =
                                              [this](proto::StepResult result) {
                                                absl::MutexLock lock(&mutex_);
                                                done_.push_back(std::move(result));
                                              },
                                          .failed =
                                              [this](const std::string& error) {
                                                absl::MutexLock lock(&mutex_);
                                                errors_.push_back(error);
                                              }});
  }
  void TearDown() override {
    streams_.reset();
    servers_.clear();
  }
  void Send(uint64_t step) {
    proto::StepPlan plan;
    plan.set_step_id(step);
    streams_->Send(plan);
    for (auto& rank : ranks_) rank->Await(step);
  }
  void AwaitDone(size_t count) {
    absl::MutexLock lock(&mutex_);
    auto there = [&] { return done_.size() == count; };
    mutex_.Await(absl::Condition(&there));
  }
  void AwaitError() {
    absl::MutexLock lock(&mutex_);
    auto there = [&] { return !errors_.empty(); };
    mutex_.Await(absl::Condition(&there));
  }
  void AwaitMissing(const std::vector<int>& ranks) {
    while (streams_->Missing() != ranks) std::this_thread::yield();
  }

  std::vector<std::unique_ptr<FakeRank>> ranks_;
  std::vector<std::unique_ptr<ServerRunner>> servers_;
  absl::Mutex mutex_;
  std::vector<proto::StepResult> done_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> errors_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StepStreams> streams_;
};

TEST_F(StepStreamsTest, AStepIsDoneWhenAllRanksHaveAnswered) {
  Start(3);
  EXPECT_THAT(streams_->Missing(), IsEmpty());
  for (uint64_t step = 1; step <= 20; ++step) {
    Send(step);
    ranks_[0]->Answer(step);
    AwaitMissing({1, 2});
    ranks_[2]->Answer(step);
    AwaitMissing({1});
    {
      absl::MutexLock lock(&mutex_);
      ASSERT_EQ(done_.size(), step - 1);
    }
    ranks_[1]->Answer(step);
    AwaitDone(step);
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(done_.back().step_id(), step);
    EXPECT_EQ(done_.back().sequences(0).token_id(), 7) << "of rank 0";
  }
}

TEST_F(StepStreamsTest, TheFirstErrorOfSeveralRanksEndsAll) {
  Start(2);
  Send(1);
  ranks_[1]->Answer(1, "no memory");
  AwaitError();
  ranks_[0]->Answer(1, "the group has ended");
  Send(2);
  ranks_[0]->Answer(2);
  ranks_[1]->Answer(2);
  streams_.reset();  // all has been read
  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(errors_, ElementsAre("rank 1: no memory"));
  EXPECT_THAT(done_, IsEmpty());
}

TEST_F(StepStreamsTest, AnErrorOfTheOnlyRankIsAResult) {
  Start(1);
  Send(1);
  ranks_[0]->Answer(1, "no memory");
  AwaitDone(1);
  Send(2);
  ranks_[0]->Answer(2);
  AwaitDone(2);
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(done_[0].error(), "no memory");
  EXPECT_THAT(errors_, IsEmpty());
}

TEST_F(StepStreamsTest, AnswersToOtherStepsAndSecondOnesDoNotCount) {
  Start(2);
  Send(5);
  ranks_[1]->Answer(4);
  ranks_[0]->Answer(5);
  ranks_[0]->Answer(5, "twice");
  AwaitMissing({1});
  ranks_[1]->Answer(5);
  AwaitDone(1);
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(done_[0].error(), "");
  EXPECT_THAT(errors_, IsEmpty());
}

}  // namespace
}  // namespace kt
