// SPDX-License-Identifier: Apache-2.0
// kt-gpu-worker: one rank of the device side. Wires device, weights, cache, forward pass, engine
// and service, top to bottom.
#include <bit>

#include "common/base/status.h"
#include "common/ipc/pages.h"
#include "common/model/placement.h"
#include "common/topology/cpu_budget.h"
#include "common/topology/thread_pool.h"
#include "common/weights/tensor_shard.h"
#include "gpu_worker/device_check.h"
#include "gpu_worker/device_host.h"
#include "gpu_worker/ops_host.h"
#include "gpu_worker/worker_service.h"
#include "spdlog/spdlog.h"
#include "worker/kernel_choice.h"
#include "worker/layer_facts.h"
#include "worker/step_limits.h"
#include "worker/worker_main.h"

namespace kt {
namespace {

static_assert(kShardTileRows == kTileRows && kShardsMax == kLocalRanksMax);
// The watchdog ends a rank that hangs; who waits for it must not give up before.
constexpr int64_t kGroupMarginUs = 10'000'000;

class GpuWorker final : public Worker {
 public:
  static absl::StatusOr<std::unique_ptr<Worker>> Make(const WorkerContext& context) {
    std::unique_ptr<GpuWorker> w(new GpuWorker);
    w->context_ = context;
    const proto::RuntimeConfig& config = context.config;
    if (config.device().kind() != "host") {
      return Unimplemented("device: {} is not built; host is", config.device().kind());
    }
    KT_ASSIGN_OR_RETURN(w->topology_, topology::Topology::Load());
    const proto::ExpertOptions& experts = config.experts();
    KT_ASSIGN_OR_RETURN(
        topology::ThreadPlan plan,
        topology::SplitThreads({.expert_threads = experts.cpuinfer_threads(),
                                .workers = experts.worker_count(),
                                .nodes = {experts.numa_nodes().begin(), experts.numa_nodes().end()},
                                .device_threads = config.device().threads(),
                                .device_ranks = config.device().tensor_parallel_size(),
                                .usable_cores = experts.usable_cores()},
                               w->topology_));
    if (context.index >= static_cast<int>(plan.devices.size())) {
      return InvalidArgument("--index {}: there are {} ranks", context.index, plan.devices.size());
    }
    w->wait_ = plan.wait;
    w->pool_ = std::make_unique<topology::ThreadPool>(
        w->topology_, "kt-device", plan.devices[static_cast<size_t>(context.index)].pins,
        plan.wait);
    if (!w->pool_->warning().empty()) spdlog::warn("{}", w->pool_->warning());
    w->device_ = MakeHostDevice(static_cast<size_t>(config.device().memory_bytes()),
                                config.device().copy_gbps());
    return std::unique_ptr<Worker>(std::move(w));
  }

  absl::StatusOr<proto::WorkerFacts> Load(
      const std::function<void(uint64_t, uint64_t)>& progress) override {
    const proto::RuntimeConfig& config = context_.config;
    KT_ASSIGN_OR_RETURN(const ModelConfig whole, LoadModelConfig(config.model().path()));
    KT_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(config.model().path()));
    KT_ASSIGN_OR_RETURN(StoredModel stored, ResolveWeights(whole, *checkpoint));
    const int ranks = config.device().tensor_parallel_size();
    KT_RETURN_IF_ERROR(CheckShards(whole, ranks));
    TensorShard shard = ShardOf(whole, stored, context_.index, ranks);
    model_ = std::move(shard.config);
    stored = std::move(shard.stored);
    Placement placement = UniformPlacement(model_, config.experts().gpu_experts_per_layer());
    resident_sets_ = placement.device;

    const bool exact = config.device().activation_dtype() == "float32";
    const DenseWeights::Options dense{.exact = exact,
                                      .plain_latent = !config.device().deterministic()};
    uint64_t dense_bytes = DenseWeights::Bytes(model_, stored, dense);
    const RowRange rows =
        TilesOfRank(whole.moes.empty() ? 0 : whole.moes[0].intermediate, context_.index, ranks);
    const IntermediateSlice slice{rows.begin, rows.end};
    // What this rank has rows of.
    held_sets_ = rows.size() > 0 ? resident_sets_ : ExpertSets(resident_sets_.size());
    uint64_t resident_bytes = ExpertBank::Bytes(model_, stored, held_sets_, slice, {exact});
    uint64_t total = dense_bytes + resident_bytes;
    if (total > device_->capacity_bytes()) {
      return ResourceExhausted(
          "device {}: dense weights take {} bytes and resident experts {}, it has {}; raise "
          "--device-memory-bytes where that is the cap{}",
          device_->name(), dense_bytes, resident_bytes, device_->capacity_bytes(),
          resident_bytes > 0 ? " or lower --kt-num-gpu-experts" : "");
    }
    KT_ASSIGN_OR_RETURN(dense_,
                        DenseWeights::Load(model_, stored, dense, *checkpoint, *device_, *pool_,
                                           [&](uint64_t done) { progress(done, total); }));
    if (resident_bytes > 0) {
      KT_ASSIGN_OR_RETURN(
          resident_memory_,
          device_->Allocate(resident_bytes, "resident experts (--kt-num-gpu-experts)"));
    }
    KT_ASSIGN_OR_RETURN(
        resident_, ExpertBank::Load(model_, stored, *checkpoint, held_sets_, slice, {exact},
                                    resident_memory_.As<uint8_t>(), *pool_,
                                    [&](uint64_t done) { progress(dense_bytes + done, total); }));
    summary_ = Summarize(stored, model_);
    KT_ASSIGN_OR_RETURN(
        const KernelChoice choice,
        ChooseKernels({context_.isa, config.device().deterministic(), !exact, dense_.head}));
    context_.isa = choice.isa;
    spdlog::info("kernels: {}", Describe(choice));
    if (config.selftest()) {
      KT_ASSIGN_OR_RETURN(std::vector<SelfCheckRow> rows, SelfCheck(false));
      KT_RETURN_IF_ERROR(CheckRows(rows));
    }
    KT_RETURN_IF_ERROR(BuildEngine());

    spdlog::info(
        "{} threads; dense weights {:.1f} MB, resident experts {:.1f} MB, KV cache {} blocks of {} "
        "tokens {:.1f} MB",
        pool_->threads(), static_cast<double>(dense_bytes) / 1e6,
        static_cast<double>(resident_bytes) / 1e6, cache_.shape().blocks,
        cache_.shape().block_tokens, static_cast<double>(cache_.bytes()) / 1e6);
    proto::WorkerFacts facts;
    facts.set_step_tokens_max(StepTokensMax(config.scheduler()));
    facts.set_kv_blocks(cache_.shape().blocks);
    facts.set_weight_bytes(static_cast<int64_t>(total));
    facts.set_arena_bytes(static_cast<int64_t>(device_->used_bytes()));
    facts.set_threads(pool_->threads());
    facts.set_numa_node(-1);
    facts.set_kernels(Describe(choice));
    const PageUse pages = ReadPageUse(dense_.memory().data(), dense_.memory().bytes());
    facts.mutable_memory()->set_pages(PageKindName(pages.kind));
    facts.mutable_memory()->set_huge_share(pages.huge_share);
    facts.mutable_memory()->set_node_share(-1);
    SetPart(summary_.embeddings, facts.mutable_embeddings());
    for (size_t l = 0; l < model_.layers.size(); ++l) {
      proto::LayerWeights* layer = facts.add_layers();
      layer->set_layer(static_cast<int>(l));
      SetPart(summary_.layers[l].attention, layer->mutable_attention());
      SetPart(summary_.layers[l].ffn, layer->mutable_ffn());
      SetExpertFacts(summary_, l, held_sets_[l].size(),
                     ExpertBank::LayerBytes(stored, held_sets_, l, slice, {exact}), layer);
    }
    return facts;
  }

  grpc::Service* service() override { return service_.get(); }
  void Stop() override {
    engine_->SetGroup(nullptr);
    engine_->SetChannel(nullptr);
  }

 private:
  // Between two steps.
  absl::StatusOr<std::vector<SelfCheckRow>> SelfCheck(bool all_layers) {
    const bool bf16 = context_.config.device().activation_dtype() == "bf16";
    KT_ASSIGN_OR_RETURN(std::vector<SelfCheckRow> rows,
                        CheckDevice({.config = &model_,
                                     .dense = &dense_,
                                     .summary = &summary_,
                                     .device = device_.get(),
                                     .ops = {.isa = context_.isa, .bf16 = bf16},
                                     .all_layers = all_layers},
                                    *pool_));
    auto experts = CheckExperts(
        {.config = &model_,
         .bank = &resident_,
         .sets = &held_sets_,
         .intermediate = model_.moes.empty() ? 0 : model_.moes[0].intermediate,
         .isa = context_.isa,
         .bf16 = bf16,
         .all_layers = all_layers,
         .precision =
             [this](int l) { return summary_.layers[static_cast<size_t>(l)].experts.precision; }},
        *pool_);
    rows.insert(rows.end(), experts.begin(), experts.end());
    return rows;
  }

  absl::Status BuildEngine() {
    const proto::RuntimeConfig& config = context_.config;
    const proto::SchedulerOptions& scheduler = config.scheduler();
    for (const IndexerConfig& ix : model_.indexers) {
      if (config.device().fp8_index_keys() &&
          !std::has_single_bit(static_cast<unsigned>(ix.head_dim)))
        return InvalidArgument(
            "--fp8-index-keys: the model's index_head_dim {} is not a power of two, which the "
            "Hadamard transform needs",
            ix.head_dim);
    }
    int tokens_max = StepTokensMax(scheduler);
    bool bf16 = config.device().activation_dtype() == "bf16";
    KT_ASSIGN_OR_RETURN(ops_, MakeHostOps({.isa = context_.isa,
                                           .bf16 = bf16,
                                           .block_tokens = scheduler.block_tokens(),
                                           .tokens_max = tokens_max,
                                           .position_max = config.model().context_length(),
                                           .linear_width = WidestProjection(model_),
                                           .deterministic = config.device().deterministic()},
                                          model_, *device_, *pool_));
    KT_ASSIGN_OR_RETURN(
        cache_, KvPool::Allocate(model_,
                                 {.blocks = KvBlocks(scheduler),
                                  .block_tokens = scheduler.block_tokens(),
                                  .state_slots = HasState(model_) ? StateSlots(scheduler) : 0,
                                  .activation_bytes = ops_->activation_bytes()},
                                 *device_));
    KT_ASSIGN_OR_RETURN(forward_,
                        Forward::Create({.config = &model_,
                                         .device = device_.get(),
                                         .ops = ops_.get(),
                                         .dense = &dense_,
                                         .resident = &resident_,
                                         .resident_sets = &resident_sets_,
                                         .cache = &cache_,
                                         .tokens_max = tokens_max,
                                         .fp8_index_keys = config.device().fp8_index_keys()}));
    StepLimits limits{.tokens_max = tokens_max,
                      .sequences_max = scheduler.max_running_requests(),
                      .vocab = model_.vocab,
                      .kv_blocks = cache_.shape().blocks,
                      .block_tokens = cache_.shape().block_tokens,
                      .position_max = config.model().context_length(),
                      .state_slots = cache_.shape().state_slots};
    KT_ASSIGN_OR_RETURN(engine_, Engine::Create({.config = &model_,
                                                 .device = device_.get(),
                                                 .ops = ops_.get(),
                                                 .dense = &dense_,
                                                 .cache = &cache_,
                                                 .forward = forward_.get(),
                                                 .limits = limits,
                                                 .rank = context_.index,
                                                 .ranks = config.device().tensor_parallel_size()}));
    const LocalGroup group{
        .rank = context_.index,
        .size = config.device().tensor_parallel_size(),
        .spin_us = wait_.spin_us,
        .timeout_us = config.server().watchdog_timeout_s() * int64_t{1'000'000} + kGroupMarginUs};
    const MoeConfig moe = model_.moes.empty() ? MoeConfig{} : model_.moes[0];
    RingShape shape{.workers = config.experts().worker_count(),
                    .tokens_max = tokens_max,
                    .hidden = moe.width,
                    .top_k = moe.top_k,
                    .activation_bytes = ops_->activation_bytes()};
    service_ = std::make_unique<WorkerService>(
        engine_.get(), shape, RingWaitPolicy{wait_.spin_us}, group, context_.segments,
        [this] { pool_->BindCaller(); }, [this](bool all) { return SelfCheck(all); });
    pool_->BeginActive();
    return absl::OkStatus();
  }

  WorkerContext context_;
  topology::Topology topology_;
  topology::WaitPolicy wait_;
  std::unique_ptr<topology::ThreadPool> pool_;
  std::unique_ptr<Device> device_;
  ModelConfig model_;
  WeightSummary summary_;
  ExpertSets resident_sets_, held_sets_;
  DenseWeights dense_;
  DeviceBuffer resident_memory_;
  ExpertBank resident_;
  std::unique_ptr<Ops> ops_;
  KvPool cache_;
  std::unique_ptr<Forward> forward_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<WorkerService> service_;
};

}  // namespace
}  // namespace kt

int main(int argc, char** argv) {
  return kt::WorkerMain(argc, argv, kt::proto::WORKER_KIND_GPU, "kt-gpu-worker",
                        kt::GpuWorker::Make);
}
