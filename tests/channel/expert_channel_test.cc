// SPDX-License-Identifier: Apache-2.0
// One conformance suite for both transports of the expert channel: real client and server sides,
// the expert function replaced by one whose results can be predicted.
#include "gpu_worker/expert_client/expert_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <future>
#include <random>
#include <thread>

#include "absl/synchronization/notification.h"
#include "common/base/status.h"
#include "common/rpc/server_runner.h"
#include "cpu_expert_worker/expert_service.h"

namespace kt {
namespace {

constexpr int kWorkers = 2, kTokens = 7, kHidden = 40, kTopK = 3;
constexpr RingShape kShape{.workers = kWorkers,
                           .tokens_max = kTokens,
                           .hidden = kHidden,
                           .top_k = kTopK,
                           .activation_bytes = 4};

// results[t][h] = rows[t][h] * sum over slots of weight * (id + 1), times the worker's number; ids
// of -1 count nothing.
absl::Status FakeExperts(int worker, const ExpertTask& task) {
  if (task.layer == 13) return InvalidArgument("layer 13 has no experts");
  for (int t = 0; t < task.tokens; ++t) {
    float factor = 0;
    for (int k = 0; k < kTopK; ++k) {
      int id = task.ids[t * kTopK + k];
      if (id >= 0) factor += task.weights[t * kTopK + k] * static_cast<float>(id + 1);
    }
    for (int h = 0; h < kHidden; ++h) {
      task.results[t * kHidden + h] = static_cast<const float*>(task.rows)[t * kHidden + h] *
                                      factor * static_cast<float>(worker + 1);
    }
  }
  return absl::OkStatus();
}

class ExpertChannelTest : public ::testing::TestWithParam<std::string> {
 protected:
  ExpertChannelTest() : segment_(Segment::Create("ring", RingBytes(kShape)).value()) {
    char dir[] = "/tmp/kt-channel-XXXXXX";
    dir_ = mkdtemp(dir);
    for (int w = 0; w < kWorkers; ++w) StartWorker(w);
    if (GetParam() == "ring") {
      channel_ = MakeRingChannel(RingHost::Create(Mapping(), kShape, {}).value());
      for (int w = 0; w < kWorkers; ++w) {
        proto::AttachRingRequest request;
        request.mutable_ring()->set_bytes(RingBytes(kShape));
        proto::AttachRingReply reply;
        grpc::ClientContext context;
        auto stub =
            proto::CpuExpertWorker::NewStub(InternalChannel(targets_[static_cast<size_t>(w)]));
        grpc::Status status = stub->AttachRing(&context, request, &reply);
        EXPECT_TRUE(status.ok()) << status.error_message();
      }
    } else {
      channel_ = MakeGrpcChannel(targets_, kShape).value();
    }
    channel_->BeginStep();
  }
  ~ExpertChannelTest() override {
    channel_.reset();
    servers_.clear();
    for (const std::string& t : targets_) unlink(t.substr(5).c_str());
    rmdir(dir_.c_str());
  }

  Segment Mapping() {
    return Segment::FromFd(fcntl(segment_.fd(), F_DUPFD_CLOEXEC, 0), RingBytes(kShape)).value();
  }

  void StartWorker(int w) {
    targets_.push_back("unix:" + dir_ + "/" + std::to_string(w));
    services_.push_back(std::make_unique<ExpertService>(
        w, kShape, RingWaitPolicy{},
        [this, w](const ExpertTask& task) {
          if (task.layer == 14) hold_.WaitForNotification();
          return FakeExperts(w, task);
        },
        [this](const std::string&, size_t) -> absl::StatusOr<Segment> { return Mapping(); }, [] {},
        [](bool) { return proto::SelfCheckReply(); }));
    servers_.push_back(ServerRunner::Start(targets_.back(), {services_.back().get()}).value());
  }

  ExpertTicket Submit(int layer, int tokens, int seed) {
    ExpertChannel::Buffers b = channel_->Next();
    std::mt19937 rng(static_cast<unsigned>(seed));
    for (int i = 0; i < tokens * kHidden; ++i)
      static_cast<float*>(b.rows)[i] = static_cast<float>(rng() % 1000) / 64;
    for (int i = 0; i < tokens * kTopK; ++i) {
      b.ids[i] = static_cast<int>(rng() % 9) - 1;
      b.weights[i] = static_cast<float>(rng() % 16) / 16;
    }
    auto ticket = channel_->Submit(layer, tokens);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    return ticket.value_or(0);
  }

  void ExpectResults(ExpertTicket ticket, int tokens, int seed) {
    std::vector<float> rows(static_cast<size_t>(tokens * kHidden)),
        weights(static_cast<size_t>(tokens * kTopK)), want(rows.size());
    std::vector<int32_t> ids(weights.size());
    std::mt19937 rng(static_cast<unsigned>(seed));
    for (float& x : rows) x = static_cast<float>(rng() % 1000) / 64;
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int>(rng() % 9) - 1;
      weights[i] = static_cast<float>(rng() % 16) / 16;
    }
    for (int w = 0; w < kWorkers; ++w) {
      ASSERT_TRUE(
          FakeExperts(w, {0, tokens, rows.data(), ids.data(), weights.data(), want.data()}).ok());
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_EQ(channel_->partial(w, ticket)[i], want[i]) << "worker " << w << " value " << i;
    }
  }

  Segment segment_;
  std::string dir_;
  std::vector<std::string> targets_;
  absl::Notification hold_;
  std::vector<std::unique_ptr<ExpertService>> services_;
  std::vector<std::unique_ptr<ServerRunner>> servers_;
  std::unique_ptr<ExpertChannel> channel_;
};

TEST_P(ExpertChannelTest, PartialSumsOfEveryWorkerComeBack) {
  ASSERT_EQ(channel_->workers(), kWorkers);
  for (int i = 0; i < 300; ++i) {
    int tokens = 1 + i % kTokens;
    ExpertTicket ticket = Submit(i % 12, tokens, i);
    ASSERT_EQ(Message(channel_->Wait(ticket, 10'000'000)), "");
    ExpectResults(ticket, tokens, i);
  }
}

TEST_P(ExpertChannelTest, TwoTasksMayBeOnTheirWay) {
  for (int i = 0; i < 50; ++i) {
    ExpertTicket a = Submit(1, 3, 2 * i);
    ExpertTicket b = Submit(2, 5, 2 * i + 1);
    ASSERT_TRUE(channel_->Wait(a, 10'000'000).ok());
    ExpectResults(a, 3, 2 * i);
    ASSERT_TRUE(channel_->Wait(b, 10'000'000).ok());
    ExpectResults(b, 5, 2 * i + 1);
  }
}

TEST_P(ExpertChannelTest, AFailedTaskIsReportedAndTheNextOneWorks) {
  EXPECT_EQ(channel_->Wait(Submit(13, 2, 1), 10'000'000).code(), absl::StatusCode::kUnavailable);
  ExpertTicket ticket = Submit(1, 2, 2);
  ASSERT_TRUE(channel_->Wait(ticket, 10'000'000).ok());
  ExpectResults(ticket, 2, 2);
}

TEST_P(ExpertChannelTest, ASilentWorkerEndsInADeadlineAndAnAbortReleasesTheWaiter) {
  ExpertTicket ticket = Submit(14, 1, 1);
  EXPECT_EQ(channel_->Wait(ticket, 50'000).code(), absl::StatusCode::kDeadlineExceeded);
  auto waiter = std::async(std::launch::async, [&] { return channel_->Wait(ticket, 60'000'000); });
  channel_->Abort();
  EXPECT_EQ(waiter.get().code(), absl::StatusCode::kAborted);
  hold_.Notify();
}

INSTANTIATE_TEST_SUITE_P(Transports, ExpertChannelTest, ::testing::Values("ring", "grpc"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kt
