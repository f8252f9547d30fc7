// SPDX-License-Identifier: Apache-2.0
#include "planner/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "common/placement/placement.h"
#include "common/weights/checkpoint.h"

namespace kt {
namespace {

using ::testing::HasSubstr;

class MemoryPlanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string dir = KT_SOURCE_DIR "/tests/data/models/qwen3_moe";
    config_ = LoadModelConfig(dir).value();
    checkpoint_ = Checkpoint::Open(dir).value();
    stored_ = ResolveWeights(config_, *checkpoint_).value();
    options_.mutable_device()->set_kind("host");
    options_.mutable_device()->set_activation_dtype("bf16");
    options_.mutable_device()->set_tensor_parallel_size(1);
    options_.mutable_device()->set_threads(2);
    options_.mutable_device()->set_deterministic(true);
    options_.mutable_experts()->set_method("BF16");
    options_.mutable_experts()->set_transport("ring");
    options_.mutable_experts()->set_worker_count(1);
    options_.mutable_experts()->set_cpuinfer_threads(2);
    SetResidentsPerLayer(config_.moes[0].num_experts / 2, options_);
    proto::SchedulerOptions& s = *options_.mutable_scheduler();
    s.set_block_tokens(16);
    s.set_chunked_prefill_size(512);
    s.set_max_running_requests(8);
    s.set_max_total_tokens(8192);
    options_.mutable_model()->set_context_length(4096);
  }
  void SetResidentsPerLayer(int count, proto::RuntimeConfig& options) const {
    Placement placement;
    placement.device.resize(config_.layers.size());
    for (size_t l = 0; l < config_.layers.size(); ++l) {
      for (int e = 0; e < std::min(count, ExpertsOf(config_, l)); ++e)
        placement.device[l].push_back(e);
    }
    SetResidents(placement, options.mutable_experts());
  }
  PlannedModel model() const { return {&config_, &stored_, &stored_}; }
  MemoryPlan Plan(const MachineMemory& machine) {
    return PlanMemory(options_, model(), machine).value();
  }
  int64_t DeviceBytes() {
    return Plan({.host_bytes = int64_t{1} << 40}).processes[3].device_bytes();
  }

  ModelConfig config_;
  std::unique_ptr<Checkpoint> checkpoint_;
  StoredModel stored_;
  proto::RuntimeConfig options_;
};

TEST_F(MemoryPlanTest, ListsProcessesAndFitsWhereThereIsRoom) {
  const MemoryPlan plan = Plan({.host_bytes = int64_t{1} << 40});
  ASSERT_EQ(plan.processes.size(), 5u);
  EXPECT_EQ(plan.processes[3].name, "kt-gpu-worker-0");
  EXPECT_EQ(plan.processes[4].name, "kt-cpu-expert-worker-0");
  EXPECT_GT(plan.processes[3].device_bytes(), 0);
  EXPECT_TRUE(plan.fits());
}

TEST_F(MemoryPlanTest, EverySuggestionFitsAndOneStepMoreDoesNot) {
  const MachineMemory machine{.host_bytes = int64_t{1} << 40, .device_bytes = DeviceBytes() - 4096};
  const MemoryPlan plan = Plan(machine);
  ASSERT_FALSE(plan.fits());
  EXPECT_THAT(plan.Shortfalls()[0], HasSubstr("kt-gpu-worker-0"));
  const std::vector<PlanFix> fixes = SmallestChanges(options_, model(), machine);
  ASSERT_FALSE(fixes.empty());
  for (const PlanFix& fix : fixes) {
    ASSERT_EQ(fix.size(), 1u);
    EXPECT_LT(fix[0].to, fix[0].from) << fix[0].flag;
    auto fits = [&](int64_t value) {
      proto::RuntimeConfig changed = options_;
      if (fix[0].flag == "--kt-num-gpu-experts") {
        SetResidentsPerLayer(static_cast<int>(value), changed);
      } else if (fix[0].flag == "--max-total-tokens") {
        changed.mutable_scheduler()->set_max_total_tokens(static_cast<int32_t>(value));
        changed.mutable_model()->set_context_length(
            std::min(options_.model().context_length(), static_cast<int32_t>(value)));
      } else if (fix[0].flag == "--chunked-prefill-size") {
        changed.mutable_scheduler()->set_chunked_prefill_size(static_cast<int32_t>(value));
      } else {
        changed.mutable_scheduler()->set_max_running_requests(static_cast<int32_t>(value));
      }
      return PlanMemory(changed, model(), machine)->fits();
    };
    EXPECT_TRUE(fits(fix[0].to)) << fix[0].flag;
    const bool counted =
        fix[0].flag == "--kt-num-gpu-experts" || fix[0].flag == "--max-running-requests";
    EXPECT_FALSE(fits(fix[0].to + (counted ? 1 : 32))) << fix[0].flag;
  }
  EXPECT_THAT(FixText(fixes), HasSubstr("--max-total-tokens"));
}

TEST_F(MemoryPlanTest, WhereNoFlagAloneIsEnoughSeveralAreNamedTogether) {
  const MemoryPlan all = Plan({.host_bytes = int64_t{1} << 40});
  int64_t dense = 0;
  for (const PlannedPool& p : all.processes[3].pools)
    dense += p.name == "dense weights" ? p.bytes : 0;
  int64_t low = dense, high = DeviceBytes();
  // The least memory at which something helps.
  while (low + 1024 < high) {
    const int64_t middle = (low + high) / 2;
    const MachineMemory machine{.host_bytes = int64_t{1} << 40, .device_bytes = middle};
    (SmallestChanges(options_, model(), machine).empty() ? low : high) = middle;
  }
  const auto fixes =
      SmallestChanges(options_, model(), {.host_bytes = int64_t{1} << 40, .device_bytes = high});
  ASSERT_EQ(fixes.size(), 1u);
  EXPECT_GT(fixes[0].size(), 1u);
  EXPECT_TRUE(
      SmallestChanges(options_, model(), {.host_bytes = int64_t{1} << 40, .device_bytes = dense})
          .empty());
}

TEST_F(MemoryPlanTest, TheStaticFractionBoundsWeightsAndCache) {
  options_.mutable_device()->set_mem_fraction_static(0.1);
  const MemoryPlan plan =
      Plan({.host_bytes = int64_t{1} << 40, .device_bytes = DeviceBytes() + 4096});
  ASSERT_FALSE(plan.fits());
  EXPECT_THAT(plan.Shortfalls()[0], HasSubstr("--mem-fraction-static 0.1"));
}

TEST_F(MemoryPlanTest, HostMemoryCountsTheHostDevice) {
  const MemoryPlan plan = Plan({.host_bytes = int64_t{1} << 40});
  const MemoryPlan apart = Plan({.host_bytes = int64_t{1} << 40, .device_is_host = false});
  EXPECT_EQ(plan.host_bytes(), apart.host_bytes() + plan.processes[3].device_bytes());
  EXPECT_FALSE(Plan({.host_bytes = plan.host_bytes() - 1}).fits());
}

}  // namespace
}  // namespace kt
