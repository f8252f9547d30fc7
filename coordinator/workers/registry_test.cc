// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/registry.h"

#include <gtest/gtest.h>

#include "common/base/status.h"

namespace kt {
namespace {

class RegistryTest : public ::testing::Test {
 protected:
  Registry registry_{
      RegistryConfig{.gpu_workers = 1, .expert_workers = 2, .versions = {3, "build-a", 1}}};
  TimePoint now_{std::chrono::seconds(1000)};

  static proto::RegisterRequest Request(proto::WorkerKind kind, int index, uint64_t incarnation) {
    proto::RegisterRequest r;
    r.set_kind(kind);
    r.set_index(index);
    r.set_incarnation(incarnation);
    r.set_protocol_version(3);
    r.set_build_id("build-a");
    r.set_packed_layout_version(1);
    return r;
  }
  void Ready(proto::WorkerKind kind, int index, uint64_t incarnation) {
    ASSERT_EQ(Message(registry_.OnRegister(Request(kind, index, incarnation), now_)), "");
    proto::WorkerReport report;
    report.set_kind(kind);
    report.set_index(index);
    report.set_incarnation(incarnation);
    report.set_state(proto::WORKER_STATE_READY);
    report.mutable_facts()->set_kv_blocks(8);
    report.mutable_facts()->set_step_tokens_max(8);
    ASSERT_EQ(Message(registry_.OnReport(report, now_)), "");
  }
  uint64_t AllReady(uint64_t incarnation) {
    Ready(proto::WORKER_KIND_GPU, 0, incarnation);
    Ready(proto::WORKER_KIND_CPU_EXPERT, 1, incarnation);
    Ready(proto::WORKER_KIND_CPU_EXPERT, 0, incarnation);
    auto actions = registry_.TakeActions();
    EXPECT_EQ(actions.size(), 1u);
    const auto& attach = std::get<AttachAction>(actions.at(0));
    EXPECT_EQ(attach.workers.size(), 3u);
    EXPECT_EQ(attach.workers[2].key.index, 1);
    return attach.generation;
  }
};

TEST_F(RegistryTest, ServesOnceAllAreReadyAndAttached) {
  EXPECT_EQ(registry_.Health()["state"], "starting");
  uint64_t generation = AllReady(10);
  EXPECT_FALSE(registry_.serving());
  registry_.OnAttached(generation);
  EXPECT_TRUE(registry_.serving());
  EXPECT_EQ(registry_.Health()["state"], "ready");
}

TEST_F(RegistryTest, AVersionThatDiffersIsRefusedWithBothValues) {
  auto request = Request(proto::WORKER_KIND_GPU, 0, 1);
  request.set_build_id("build-b");
  std::string message = Message(registry_.OnRegister(request, now_));
  EXPECT_NE(message.find("build-a"), std::string::npos);
  EXPECT_NE(message.find("build-b"), std::string::npos);
  EXPECT_FALSE(registry_.OnRegister(Request(proto::WORKER_KIND_CPU_EXPERT, 2, 1), now_).ok());
}

TEST_F(RegistryTest, ALostWorkerStopsServingAndItsSuccessorAttachesANewGeneration) {
  uint64_t first = AllReady(10);
  registry_.OnAttached(first);
  registry_.OnGone({proto::WORKER_KIND_CPU_EXPERT, 0}, 10, "stream closed");
  auto actions = registry_.TakeActions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_NE(std::get<LostAction>(actions[0]).reason.find("kt-cpu-expert-worker-0"),
            std::string::npos);
  EXPECT_EQ(registry_.Health()["state"], "degraded");
  Ready(proto::WORKER_KIND_CPU_EXPERT, 0, 11);
  actions = registry_.TakeActions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_GT(std::get<AttachAction>(actions[0]).generation, first);
}

TEST_F(RegistryTest, LateEventsOfAnOldIncarnationChangeNothing) {
  uint64_t generation = AllReady(10);
  registry_.OnAttached(generation);
  EXPECT_FALSE(registry_.OnRegister(Request(proto::WORKER_KIND_GPU, 0, 9), now_).ok());
  registry_.OnGone({proto::WORKER_KIND_GPU, 0}, 9, "late");
  EXPECT_TRUE(registry_.serving());
  EXPECT_TRUE(registry_.TakeActions().empty());
}

TEST_F(RegistryTest, AnAttachmentOvertakenByALossDoesNotServe) {
  uint64_t generation = AllReady(10);
  registry_.OnGone({proto::WORKER_KIND_GPU, 0}, 10, "killed");
  registry_.OnAttached(generation);
  EXPECT_FALSE(registry_.serving());
}

TEST_F(RegistryTest, ALateAnswerDoesNotEndTheAttachmentUnderWay) {
  uint64_t first = AllReady(10);
  registry_.OnGone({proto::WORKER_KIND_GPU, 0}, 10, "killed");
  Ready(proto::WORKER_KIND_GPU, 0, 11);
  EXPECT_EQ(registry_.TakeActions().size(), 1u);
  registry_.OnAttachFailed(first, "late");
  registry_.OnTimer(now_);
  EXPECT_TRUE(registry_.TakeActions().empty());
}

TEST_F(RegistryTest, ARegistrationTwiceIsOne) {
  auto request = Request(proto::WORKER_KIND_GPU, 0, 5);
  EXPECT_TRUE(registry_.OnRegister(request, now_).ok());
  EXPECT_TRUE(registry_.OnRegister(request, now_).ok());
}

TEST_F(RegistryTest, AFailedAttachmentIsTriedAgain) {
  uint64_t generation = AllReady(10);
  registry_.OnTimer(now_);
  EXPECT_TRUE(registry_.TakeActions().empty()) << "the first one has not been answered yet";
  registry_.OnAttachFailed(generation, "refused");
  registry_.OnTimer(now_);
  auto actions = registry_.TakeActions();
  ASSERT_EQ(actions.size(), 1u);
  registry_.OnAttached(std::get<AttachAction>(actions[0]).generation);
  EXPECT_TRUE(registry_.serving());
}

TEST_F(RegistryTest, AFailedStepOfARankLeadsToANewGeneration) {
  const uint64_t first = AllReady(10);
  registry_.OnStepFailed(first, "too early");
  EXPECT_TRUE(registry_.TakeActions().empty()) << "it is not attached yet";
  registry_.OnAttached(first);
  registry_.OnStepFailed(first, "rank 1: no memory");
  registry_.OnStepFailed(first, "rank 0: the group has ended");  // what the first one caused
  auto actions = registry_.TakeActions();
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_NE(std::get<LostAction>(actions[0]).reason.find("rank 1: no memory"), std::string::npos);
  const auto& attach = std::get<AttachAction>(actions[1]);
  EXPECT_GT(attach.generation, first);
  registry_.OnAttached(attach.generation);
  registry_.OnStepFailed(first, "late");
  EXPECT_TRUE(registry_.serving());
}

TEST_F(RegistryTest, EveryRankIsWaitedForAndAttached) {
  registry_ = Registry(
      RegistryConfig{.gpu_workers = 3, .expert_workers = 1, .versions = {3, "build-a", 1}});
  Ready(proto::WORKER_KIND_CPU_EXPERT, 0, 10);
  for (int rank : {2, 0}) Ready(proto::WORKER_KIND_GPU, rank, 10);
  EXPECT_TRUE(registry_.TakeActions().empty());
  Ready(proto::WORKER_KIND_GPU, 1, 10);
  auto actions = registry_.TakeActions();
  ASSERT_EQ(actions.size(), 1u);
  const auto& attach = std::get<AttachAction>(actions[0]);
  ASSERT_EQ(attach.workers.size(), 4u);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(attach.workers[rank].key.index, rank);
  registry_.OnAttached(attach.generation);
  EXPECT_EQ(registry_.Health()["workers"].size(), 4u);
  registry_.OnGone({proto::WORKER_KIND_GPU, 2}, 10, "killed");
  EXPECT_FALSE(registry_.serving());
}

TEST_F(RegistryTest, ASilentWorkerIsKilledOncePerPeriod) {
  registry_.OnAttached(AllReady(10));
  registry_.OnTimer(now_ + std::chrono::seconds(31));
  EXPECT_EQ(registry_.TakeActions().size(), 3u);
  registry_.OnTimer(now_ + std::chrono::seconds(32));
  EXPECT_TRUE(registry_.TakeActions().empty());
}

}  // namespace
}  // namespace kt
