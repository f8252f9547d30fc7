// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "gpu_worker/device_host.h"
#include "gpu_worker/ops_host.h"
#include "gpu_worker/testing/expert_workers.h"

namespace kt {
namespace {

using testing::ExpertWorkers;
using ::testing::HasSubstr;
using testing::TinyModel;

constexpr int kTokens = 12, kBlockTokens = 16;

// A device that has no memory left for what waits on another stream.
class ScarceDevice final : public Device {
 public:
  bool scarce = false;

  ScarceDevice() : Device(size_t{1} << 40) {}
  std::string name() const override { return "scarce"; }
  absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes, const std::string& what) override {
    return host_->AllocateHost(bytes, what);
  }
  absl::StatusOr<StreamId> CreateStream() override { return host_->CreateStream(); }
  absl::StatusOr<EventId> CreateEvent() override { return host_->CreateEvent(); }
  absl::Status Record(EventId event, StreamId stream) override {
    return host_->Record(event, stream);
  }
  absl::Status Wait(StreamId stream, EventId event) override {
    if (scarce) return ResourceExhausted("device scarce: no memory");
    return host_->Wait(stream, event);
  }
  absl::Status Synchronize(StreamId stream) override { return host_->Synchronize(stream); }
  absl::Status CopyAsync(void* target, const void* source, size_t bytes, CopyKind kind,
                         StreamId stream) override {
    return host_->CopyAsync(target, source, bytes, kind, stream);
  }
  absl::Status CopyRowsAsync(const CopyRows& copy, CopyKind kind, StreamId stream) override {
    return host_->CopyRowsAsync(copy, kind, stream);
  }
  absl::StatusOr<double> ElapsedMs(EventId from, EventId to) override {
    return host_->ElapsedMs(from, to);
  }
  absl::Status RegisterHost(const void*, size_t) override {
    return ResourceExhausted("device scarce: not page-locked");
  }
  void UnregisterHost(const void*) override { ADD_FAILURE() << "was never registered"; }

 protected:
  absl::StatusOr<void*> Map(size_t bytes, const std::string& what) override {
    absl::StatusOr<DeviceBuffer> buffer = host_->Allocate(bytes, what);
    if (!buffer.ok()) return buffer.status();
    void* data = buffer->data();
    buffers_[data] = *std::move(buffer);
    return data;
  }
  void Unmap(void* data, size_t) override { buffers_.erase(data); }
  void UnmapHost(void*, size_t) override {}  // the host device's own

 private:
  std::unique_ptr<Device> host_ = MakeHostDevice(0, 0);
  std::map<void*, DeviceBuffer> buffers_;
};

// A whole rank without CPU workers behind a channel: where `residents` are all experts a hybrid
// step needs none.
struct EngineTest : ::testing::Test {
  TinyModel model{"qwen3_moe"};
  ScarceDevice device;
  Serial serial;
  const ExpertSets all = model.AllExperts();
  const ExpertForm form{.exact = true};
  ExpertWorkers workers{model, all, form, 2};
  ExpertPieces pieces = ExpertPieces::Make(model.stored, all, form, model.intermediate(), 2,
                                           {0, model.intermediate()})
                            .value();
  DenseWeights dense;
  std::unique_ptr<Ops> ops;
  KvPool cache;
  ResidentExperts residents;
  std::unique_ptr<ExpertStream> stream;
  ExpertBytes bytes;
  std::unique_ptr<Forward> forward;
  std::unique_ptr<Engine> engine;

  void Make(int residents_per_layer) {
    ExpertSets resident = all;
    std::vector<size_t> counts;
    for (auto& set : resident) {
      set.resize(std::min<size_t>(set.size(), static_cast<size_t>(residents_per_layer)));
      counts.push_back(set.size());
      bytes.resident.emplace_back(16, 1);
      bytes.workers.emplace_back(16, 1);
    }
    dense = DenseWeights::Load(model.config, model.stored, {.exact = true}, *model.checkpoint,
                               device, serial, [](uint64_t) {})
                .value();
    ops = MakeHostOps({.bf16 = false,
                       .block_tokens = kBlockTokens,
                       .tokens_max = kTokens,
                       .position_max = kBlockTokens,
                       .linear_width = WidestProjection(model.config)},
                      model.config, device, serial)
              .value();
    cache =
        KvPool::Allocate(model.config,
                         {.blocks = 1, .block_tokens = kBlockTokens, .activation_bytes = 4}, device)
            .value();
    residents = ResidentExperts::Changing(model.config, device, pieces, resident).value();
    stream = ExpertStream::Create(device, pieces, counts).value();
    forward = Forward::Create({.config = &model.config,
                               .device = &device,
                               .ops = ops.get(),
                               .dense = &dense,
                               .residents = &residents,
                               .stream = stream.get(),
                               .expert_bytes = &bytes,
                               .cache = &cache,
                               .tokens_max = kTokens})
                  .value();
    engine = Engine::Create({.config = &model.config,
                             .device = &device,
                             .ops = ops.get(),
                             .dense = &dense,
                             .cache = &cache,
                             .forward = forward.get(),
                             .residents = &residents,
                             .residents_change = true,
                             .stream = stream.get(),
                             .limits = {.tokens_max = kTokens,
                                        .sequences_max = 1,
                                        .vocab = model.config.vocab,
                                        .kv_blocks = 1,
                                        .block_tokens = kBlockTokens,
                                        .position_max = kBlockTokens}})
                 .value();
    ASSERT_TRUE(engine->SetArenas(workers.Map(pieces).value(), true).ok());
  }

  proto::StepPlan Plan(proto::StepMode mode, uint64_t version) const {
    proto::StepPlan plan;
    plan.set_step_id(1);
    plan.set_mode(mode);
    plan.set_placement_version(version);
    proto::SequenceStep* s = plan.add_sequences();
    for (int i = 0; i < kTokens; ++i) s->add_token_ids(20 + 3 * i);
    s->add_block_table(0);
    s->mutable_capture()->set_logits(true);
    s->mutable_capture()->set_routing(true);
    return plan;
  }
  void AddHeat(proto::StepPlan& plan, float hottest) const {
    for (size_t l = 0; l < all.size(); ++l) {
      proto::LayerHeat* heat = plan.add_heat();
      heat->set_layer(static_cast<int>(l));
      for (size_t e = 0; e < 16; ++e) heat->add_experts(e >= 12 ? hottest : 0);
    }
  }
  static std::vector<float> Logits(const proto::StepResult& result) {
    EXPECT_EQ(result.error(), "");
    const auto& logits = result.sequences(0).capture().logits();
    return {logits.begin(), logits.end()};
  }
};

TEST_F(EngineTest, BothModesHaveTheSameBits) {
  Make(16);
  const proto::StepResult hybrid = engine->RunStep(Plan(proto::STEP_MODE_HYBRID, 1));
  const proto::StepResult layerwise = engine->RunStep(Plan(proto::STEP_MODE_LAYERWISE, 1));
  EXPECT_EQ(Logits(layerwise), Logits(hybrid));
  EXPECT_EQ(layerwise.mode(), proto::STEP_MODE_LAYERWISE);
  EXPECT_EQ(layerwise.timings().copy_bytes(), 0u) << "every expert is resident";
}

TEST_F(EngineTest, WithoutMemoryALayerwiseStepRunsHybrid) {
  Make(16);
  const std::vector<float> want = Logits(engine->RunStep(Plan(proto::STEP_MODE_HYBRID, 1)));
  device.scarce = true;
  const proto::StepResult result = engine->RunStep(Plan(proto::STEP_MODE_LAYERWISE, 1));
  EXPECT_EQ(result.mode(), proto::STEP_MODE_HYBRID);
  EXPECT_EQ(Logits(result), want);
  EXPECT_EQ(result.sequences(0).capture().routing_size(), 4) << "captured once";
}

TEST_F(EngineTest, CopiesFromMemoryThatIsNotPageLockedAreCounted) {
  Make(4);
  const proto::StepResult result = engine->RunStep(Plan(proto::STEP_MODE_LAYERWISE, 1));
  ASSERT_EQ(result.error(), "");
  EXPECT_GT(result.timings().copy_bytes(), 0u);
  EXPECT_GE(result.timings().staged_copies(), 2u * all.size()) << "one a worker and layer";
}

TEST_F(EngineTest, TheHottestBecomeResidentAndTheResultSaysSo) {
  Make(4);
  proto::StepPlan plan = Plan(proto::STEP_MODE_LAYERWISE, 1);
  AddHeat(plan, 1e6);
  const proto::StepResult result = engine->RunStep(plan);
  ASSERT_EQ(result.error(), "");
  EXPECT_EQ(result.placement_version(), 2u);
  ASSERT_EQ(result.residents_size(), static_cast<int>(all.size()));
  EXPECT_THAT(result.residents(0).experts(), ::testing::ElementsAre(12, 13, 14, 15));
  const proto::StepResult again = engine->RunStep(Plan(proto::STEP_MODE_LAYERWISE, 2));
  EXPECT_EQ(again.residents_size(), 0) << "a plan without heat changes nothing";
  const std::vector<float> got = Logits(again), want = Logits(result);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4);
  EXPECT_THAT(engine->RunStep(plan).error(), HasSubstr("placement version 1")) << "it is over";
}

TEST_F(EngineTest, PlansOfOtherVersionsAndHeatThatIsNoneAreRefused) {
  Make(4);
  const auto error = [&](const proto::StepPlan& plan) { return engine->RunStep(plan).error(); };
  EXPECT_THAT(error(Plan(proto::STEP_MODE_LAYERWISE, 3)),
              HasSubstr("placement version 3, this worker has 1"));
  for (float heat :
       {-1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    proto::StepPlan plan = Plan(proto::STEP_MODE_LAYERWISE, 1);
    AddHeat(plan, heat);
    EXPECT_THAT(error(plan), HasSubstr("is no number of choices"));
  }
  proto::StepPlan plan = Plan(proto::STEP_MODE_LAYERWISE, 1);
  AddHeat(plan, 1);
  plan.mutable_heat(1)->add_experts(1);
  EXPECT_THAT(error(plan), HasSubstr("heat: layer 1 has 16 experts"));
  plan.mutable_heat()->RemoveLast();
  EXPECT_NE(error(plan), "");
}

TEST_F(EngineTest, WithoutArenasALayerwiseStepFails) {
  Make(4);
  ASSERT_TRUE(engine->SetArenas(nullptr, false).ok());
  EXPECT_THAT(engine->RunStep(Plan(proto::STEP_MODE_LAYERWISE, 1)).error(),
              HasSubstr("no expert worker is attached"));
}

TEST_F(EngineTest, MeasuresWhatALayerwiseStepCosts) {
  Make(4);
  const auto facts = engine->SetArenas(workers.Map(pieces).value(), true);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->copy_bytes(),
            engine->RunStep(Plan(proto::STEP_MODE_LAYERWISE, 1)).timings().copy_bytes());
  EXPECT_GT(facts->copy_gbytes_per_s(), 0);
  EXPECT_GT(facts->device_ms_per_row(), 0);
}

}  // namespace
}  // namespace kt
