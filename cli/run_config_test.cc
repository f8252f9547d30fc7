// SPDX-License-Identifier: Apache-2.0
#include "cli/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/launch.h"
#include "common/base/status.h"
#include "common/placement/placement.h"

namespace kt::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class RunConfigTest : public ::testing::Test {
 protected:
  RunConfigTest() {
    options_.model = ::testing::TempDir() + "run_config_model";
    std::filesystem::create_directories(options_.model);
    model_.max_position = 8192;
    model_.moes.resize(1);
    model_.moes[0].num_experts = 128;
    model_.layers.resize(3);
    model_.layers[1].moe = 0;
    model_.layers[2].moe = 0;
    absl::StatusOr<topology::Topology> topology = topology::Topology::Load();
    if (!topology.ok()) ADD_FAILURE() << topology.status();
    topology_ = *std::move(topology);
    node_ = topology_.nodes()[0].id;
    budget_ = topology::MeasureCpuBudget(topology_);
  }
  absl::StatusOr<proto::RuntimeConfig> Build() {
    return BuildRuntimeConfig(options_, model_, topology_, budget_);
  }
  std::vector<size_t> ResidentCounts() {
    std::vector<size_t> counts;
    const Placement placement = InitialPlacement(Build()->experts(), model_).value();
    for (const auto& set : placement.device) counts.push_back(set.size());
    return counts;
  }
  std::string Error() { return Message(Build().status()); }

  RunOptions options_;
  ModelConfig model_;
  topology::Topology topology_;
  topology::CpuBudget budget_;
  int node_ = 0;
};

TEST_F(RunConfigTest, LayerwiseThreshold) {
  EXPECT_EQ(Build()->scheduler().gpu_prefill_token_threshold(), 0);
  options_.gpu_prefill_token_threshold = "auto";
  EXPECT_EQ(Build()->scheduler().gpu_prefill_token_threshold(), -1);
  options_.gpu_prefill_token_threshold = "512";
  EXPECT_EQ(Build()->scheduler().gpu_prefill_token_threshold(), 512);
  for (const char* wrong : {"", "-1", "1x", "0.5", "99999999999"}) {
    options_.gpu_prefill_token_threshold = wrong;
    EXPECT_THAT(Error(), HasSubstr("--kt-gpu-prefill-token-threshold"));
  }
}

TEST_F(RunConfigTest, AThresholdAboveEveryStepIsOffAndSaidSo) {
  options_.gpu_prefill_token_threshold = "513";
  absl::StatusOr<proto::RuntimeConfig> config = Build();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->scheduler().gpu_prefill_token_threshold(), 0);
  EXPECT_THAT(StartWarnings(*config),
              ::testing::Contains(HasSubstr("a step has 512 rows at most")));
  options_.enable_mixed_chunk = true;
  EXPECT_EQ(Build()->scheduler().gpu_prefill_token_threshold(), 513) << "with decode rows";
}

TEST_F(RunConfigTest, DynamicUpdateNeedsLayerwiseStepsAndResidents) {
  options_.dynamic_expert_update = true;
  options_.num_gpu_experts = 3;
  EXPECT_FALSE(Build()->experts().dynamic_update());
  EXPECT_THAT(StartWarnings(*Build()),
              ::testing::Contains(HasSubstr("has no effect without --kt-gpu-prefill-token")));
  options_.gpu_prefill_token_threshold = "auto";
  EXPECT_TRUE(Build()->experts().dynamic_update());
  options_.num_gpu_experts = 0;
  EXPECT_FALSE(Build()->experts().dynamic_update());
}

TEST_F(RunConfigTest, Defaults) {
  absl::StatusOr<proto::RuntimeConfig> config = Build();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model().served_model_name(), "run_config_model");
  EXPECT_EQ(config->model().context_length(), 8192);
  EXPECT_EQ(config->scheduler().max_total_tokens(), 16384);
  EXPECT_EQ(config->scheduler().chunked_prefill_size(), 512);
  EXPECT_EQ(config->scheduler().max_prefill_tokens(), 512);
  EXPECT_EQ(config->scheduler().block_tokens(), 16);
  EXPECT_GE(config->experts().cpuinfer_threads(), 1);
  EXPECT_LE(config->experts().cpuinfer_threads(),
            std::max(budget_.usable_cores, config->experts().worker_count()));
  EXPECT_LE(config->device().threads(), budget_.usable_cores);
  EXPECT_THAT(config->experts().numa_nodes(), IsEmpty());
  EXPECT_EQ(config->runtime_dir(), "");
}

TEST_F(RunConfigTest, ModelPathIsMadeAbsoluteAndSlashesDoNotMatter) {
  options_.model += "/";
  options_.weight_path = options_.model + "/../run_config_model";
  absl::StatusOr<proto::RuntimeConfig> config = Build();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model().path().back(), 'l');
  EXPECT_EQ(config->model().weight_path(), config->model().path());
  options_.weight_path = "/nowhere";
  EXPECT_THAT(Error(), HasSubstr("--kt-weight-path /nowhere"));
}

TEST_F(RunConfigTest, ExpertsOnTheDevice) {
  options_.num_gpu_experts = 128;
  EXPECT_THAT(ResidentCounts(), ElementsAre(0, 128, 128));
  options_.num_gpu_experts = 129;
  EXPECT_THAT(ResidentCounts(), ElementsAre(0, 128, 128));
  EXPECT_THAT(
      StartWarnings(*Build()),
      Contains(HasSubstr("--kt-num-gpu-experts 129: a layer of the model has 128 experts")));
  options_.gpu_experts_ratio = 0.3;  // wins
  EXPECT_THAT(ResidentCounts(), ElementsAre(0, 38, 38));
  options_.gpu_experts_ratio = 0.301;  // 77.056 of 256
  EXPECT_THAT(ResidentCounts(), ElementsAre(0, 39, 38));
  options_.placement_strategy = "front-loading";
  options_.gpu_experts_ratio = 0.6;
  EXPECT_THAT(ResidentCounts(), ElementsAre(0, 128, 25));
  options_.gpu_experts_ratio = 0;
  EXPECT_THAT(ResidentCounts(), ElementsAre(0, 0, 0));
}

TEST_F(RunConfigTest, FrequencyGoesByStatistics) {
  options_.num_gpu_experts = 1;
  options_.placement_strategy = "frequency";
  EXPECT_THAT(ResidentCounts(), ElementsAre(0, 1, 1));  // as uniform
  EXPECT_THAT(StartWarnings(*Build()), Contains(HasSubstr("there are no statistics")));

  options_.init_expert_location = ::testing::TempDir() + "run_config_counts.json";
  model_.moes[0].num_experts = 2;
  std::ofstream(options_.init_expert_location) << R"({"logical_count": [[9, 9], [1, 2], [3, 4]]})";
  EXPECT_THAT(ResidentCounts(), ElementsAre(0, 0, 2));
  EXPECT_THAT(StartWarnings(*Build()), Not(Contains(HasSubstr("statistics"))));
  options_.placement_strategy = "uniform";
  EXPECT_THAT(StartWarnings(*Build()), Contains(HasSubstr("frequency only")));

  model_.moes[0].num_experts = 4;
  EXPECT_THAT(Error(),
              AllOf(HasSubstr("--init-expert-location"), HasSubstr("3 layers and 2 experts"),
                    HasSubstr("3 layers and 4 experts")));
  options_.init_expert_location = "/nowhere";
  EXPECT_THAT(Error(), HasSubstr("--init-expert-location: /nowhere"));
}

TEST_F(RunConfigTest, RoundedExpertsOnSeveralRanksHaveNoLayerwiseSteps) {
  options_.gpu_prefill_token_threshold = "100";
  options_.kt_method = "AMXINT4";
  EXPECT_EQ(Build()->scheduler().gpu_prefill_token_threshold(), 100);
  options_.tensor_parallel_size = 2;
  EXPECT_EQ(Build()->scheduler().gpu_prefill_token_threshold(), 0);
  EXPECT_THAT(StartWarnings(*Build()), Contains(HasSubstr("--kt-method AMXINT4 and 2 ranks")));
  options_.kt_method = "";
  EXPECT_EQ(Build()->scheduler().gpu_prefill_token_threshold(), 100);
}

TEST_F(RunConfigTest, RecorderIsBounded) {
  EXPECT_EQ(Build()->recorder().mode(), "stat");
  options_.recorder_buffer_size = -1;
  EXPECT_TRUE(Build().ok());
  options_.recorder_mode = "per_pass";
  EXPECT_THAT(Error(), HasSubstr("must be from 1 to 699050"));
  options_.recorder_buffer_size = 5;
  EXPECT_EQ(Build()->recorder().buffer_size(), 5);
  options_.recorder_dir = "/nowhere";
  EXPECT_EQ(Error(), "--expert-distribution-recorder-dir /nowhere: is not a directory");
}

TEST_F(RunConfigTest, ContextAndChunk) {
  options_.chunked_prefill_size = -1;
  options_.context_length = 100;
  EXPECT_EQ(Build()->scheduler().chunked_prefill_size(), 100);
  EXPECT_EQ(Build()->scheduler().max_total_tokens(), 200);
  options_.context_length = 8193;
  EXPECT_THAT(Error(), HasSubstr("--context-length 8193: the model is made for 8192 tokens"));
  options_.context_length = 0;
  options_.chunked_prefill_size = 0;
  EXPECT_THAT(Error(), HasSubstr("--chunked-prefill-size 0"));
}

TEST_F(RunConfigTest, LongContextsDoNotReserveTheirWholeLengthTwice) {
  model_.max_position = 131072;
  EXPECT_EQ(Build()->scheduler().max_total_tokens(), 32768);
}

TEST_F(RunConfigTest, TooManyThreadsAreRefused) {
  options_.cpuinfer = budget_.allowed_pus + 1;
  EXPECT_THAT(Error(), HasSubstr(fmt::format("--kt-cpuinfer {}: this process may use {} CPUs",
                                             options_.cpuinfer, budget_.allowed_pus)));
  options_.cpuinfer = 1;
  options_.threadpool_count = 2;
  EXPECT_THAT(Error(), HasSubstr("--kt-cpuinfer 1: fewer than the 2 expert workers"));
}

TEST_F(RunConfigTest, MoreWorkersThanNodesRunWithAWarning) {
  options_.threadpool_count = static_cast<int64_t>(topology_.nodes().size()) + 1;
  absl::StatusOr<proto::RuntimeConfig> config = Build();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->experts().worker_count(), options_.threadpool_count);
  EXPECT_GE(config->experts().cpuinfer_threads(), options_.threadpool_count);
  ASSERT_GE(config->experts().warnings_size(), 1);
  EXPECT_THAT(config->experts().warnings(0), HasSubstr("--kt-threadpool-count"));
  EXPECT_THAT(StartWarnings(*config), ::testing::Contains(config->experts().warnings(0)));
}

TEST_F(RunConfigTest, NodesOfWorkers) {
  options_.numa_nodes = {node_};
  EXPECT_THAT(Build()->experts().numa_nodes(), ElementsAre(node_));
  options_.threadpool_count = 2;
  EXPECT_THAT(Error(), HasSubstr("names 1 nodes for the 2 workers"));
  options_.threadpool_count = 0;
  options_.numa_nodes = {999};
  EXPECT_THAT(Error(), HasSubstr("--kt-numa-nodes 999"));
  options_.numa_nodes.clear();
  options_.numa_count_or_nodes = {1};
  EXPECT_EQ(Build()->experts().worker_count(), 1);
  EXPECT_THAT(Build()->experts().numa_nodes(), IsEmpty());
  options_.threadpool_count = 2;
  EXPECT_THAT(Error(), HasSubstr("contradicts"));
  options_.threadpool_count = 0;
  options_.numa_count_or_nodes = {0};
  EXPECT_THAT(Error(), HasSubstr("at least 1"));
}

TEST_F(RunConfigTest, OpenServerIsWarnedAbout) {
  for (const char* host : {"127.0.0.1", "localhost", "::1"}) {
    options_.host = host;
    for (const std::string& warning : StartWarnings(*Build()))
      EXPECT_THAT(warning, ::testing::Not(HasSubstr("--host")));
  }
  options_.host = "0.0.0.0";
  EXPECT_THAT(StartWarnings(*Build()), ::testing::Contains(HasSubstr("--host 0.0.0.0")));
  options_.api_key = "k";
  EXPECT_THAT(StartWarnings(*Build()), ::testing::Not(::testing::Contains(HasSubstr("--host"))));
}

TEST_F(RunConfigTest, CacheTypeFollowsTheActivations) {
  options_.kv_cache_dtype = "bf16";
  EXPECT_TRUE(Build().ok());
  options_.activation_dtype = "float32";
  EXPECT_THAT(Error(), HasSubstr("--kv-cache-dtype bf16"));
}

TEST_F(RunConfigTest, SeedIsKeptOrDrawn) {
  options_.random_seed = 0;
  EXPECT_EQ(Build()->scheduler().random_seed(), 0u);
}

TEST_F(RunConfigTest, StatesForThePrefixCacheOfModelsThatHaveThem) {
  EXPECT_TRUE(Build()->scheduler().prefix_cache());
  EXPECT_EQ(Build()->scheduler().cached_states(), 0);
  model_.attentions.resize(1);
  model_.attentions[0].kind = AttentionKind::kDeltaNet;
  EXPECT_EQ(Build()->scheduler().cached_states(), 32);
  options_.max_running_requests = 3;
  EXPECT_EQ(Build()->scheduler().cached_states(), 6);
  options_.cached_states = 0;
  EXPECT_EQ(Build()->scheduler().cached_states(), 0);
  options_.cached_states = 40;
  EXPECT_EQ(Build()->scheduler().cached_states(), 40);
  options_.disable_radix_cache = true;
  EXPECT_EQ(Build()->scheduler().cached_states(), 0);
  EXPECT_FALSE(Build()->scheduler().prefix_cache());
}

TEST_F(RunConfigTest, MissingChatTemplate) {
  options_.chat_template = "/nonexistent.jinja";
  EXPECT_THAT(Error(), HasSubstr("--chat-template /nonexistent.jinja"));
}

TEST_F(RunConfigTest, RanksShareTheHeads) {
  AttentionConfig& a = model_.attentions.emplace_back();
  a.num_heads = 8;
  a.num_kv_heads = 4;
  options_.tensor_parallel_size = 8;
  proto::RuntimeConfig config = *Build();
  EXPECT_EQ(config.device().tensor_parallel_size(), 8);
  const NodeSpec spec = MakeNodeSpec(config, "/bin", 7);
  EXPECT_EQ(spec.processes[8].name, "kt-gpu-worker-7");
  EXPECT_EQ(spec.processes[8].argv.back(), "7");
  options_.tensor_parallel_size = 3;
  EXPECT_EQ(Error(),
            "--tensor-parallel-size 3: 3 ranks cannot share the model's 8 attention heads; give "
            "1, 2, 4, 8");
}

TEST_F(RunConfigTest, ProcessesOfARun) {
  options_.threadpool_count = 2;
  proto::RuntimeConfig config = *Build();
  config.set_runtime_dir("/run/x");
  NodeSpec spec = MakeNodeSpec(config, "/bin", 7);
  ASSERT_EQ(spec.processes.size(), 4u);
  EXPECT_THAT(spec.processes[0].argv,
              ElementsAre("/bin/kt-coordinator", "--config", "/run/x/runtime_config.json"));
  EXPECT_TRUE(spec.processes[0].critical && spec.processes[0].reports_ready &&
              spec.processes[0].inherits_listener);
  EXPECT_GT(spec.processes[0].stop_timeout_ms, config.server().drain_timeout_ms());
  EXPECT_THAT(spec.processes[3].argv, ElementsAre("/bin/kt-cpu-expert-worker", "--config",
                                                  "/run/x/runtime_config.json", "--index", "1"));
  EXPECT_EQ(spec.processes[3].name, "kt-cpu-expert-worker-1");
  EXPECT_GT(spec.processes[1].stop_order, spec.processes[0].stop_order);
  EXPECT_EQ(spec.ready_text, "http://{address}/v1 model=run_config_model");
  EXPECT_TRUE(NodeSpecFromJson(NodeSpecToJson(spec)).ok());
}

}  // namespace
}  // namespace kt::cli
