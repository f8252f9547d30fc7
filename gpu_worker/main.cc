// SPDX-License-Identifier: Apache-2.0
// kt-gpu-worker: one rank of the device side. Wires device, weights, cache, forward pass, engine
// and service, top to bottom.
#include "common/base/status.h"
#include "common/ipc/pages.h"
#include "common/placement/placement.h"
#include "common/topology/cpu_budget.h"
#include "common/topology/thread_pool.h"
#include "common/weights/tensor_shard.h"
#include "gpu_worker/device_check.h"
#include "gpu_worker/device_host.h"
#include "gpu_worker/rank_engine.h"
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
    const bool exact = config.device().activation_dtype() == "float32";
    const DenseWeights::Options dense{.exact = exact,
                                      .plain_latent = !config.device().deterministic()};
    uint64_t dense_bytes = DenseWeights::Bytes(model_, stored, dense);
    KT_RETURN_IF_ERROR(PlanExperts(whole, stored));
    const uint64_t resident_bytes = experts_->ResidentBytes(model_, stored);
    const uint64_t buffer_bytes = experts_->BufferBytes();
    uint64_t total = dense_bytes + resident_bytes;
    if (total + buffer_bytes > device_->capacity_bytes()) {
      return ResourceExhausted(
          "device {}: dense weights take {} bytes, resident experts {} and the buffers of "
          "layerwise prefill {}, it has {}; raise --device-memory-bytes where that is the cap{}{}",
          device_->name(), dense_bytes, resident_bytes, buffer_bytes, device_->capacity_bytes(),
          resident_bytes > 0 ? ", lower --kt-num-gpu-experts" : "",
          buffer_bytes > 0 ? ", or do without --kt-gpu-prefill-token-threshold" : "");
    }
    KT_ASSIGN_OR_RETURN(dense_,
                        DenseWeights::Load(model_, stored, dense, *checkpoint, *device_, *pool_,
                                           [&](uint64_t done) { progress(done, total); }));
    if (experts_->slots) {
      KT_ASSIGN_OR_RETURN(residents_, ResidentExperts::Changing(model_, *device_, *experts_->pieces,
                                                                experts_->sets));
    } else {
      if (resident_bytes > 0) {
        KT_ASSIGN_OR_RETURN(
            resident_memory_,
            device_->Allocate(resident_bytes, "resident experts (--kt-num-gpu-experts)"));
      }
      KT_ASSIGN_OR_RETURN(
          resident_,
          ExpertBank::Load(model_, stored, *checkpoint, experts_->held(), experts_->slice,
                           experts_->form, resident_memory_.As<uint8_t>(), *pool_,
                           [&](uint64_t done) { progress(dense_bytes + done, total); }));
      residents_ = ResidentExperts::Fixed(model_, &resident_, experts_->sets,
                                          experts_->slice.end - experts_->slice.begin);
    }
    if (experts_->pieces) {
      KT_ASSIGN_OR_RETURN(stream_,
                          ExpertStream::Create(*device_, *experts_->pieces, experts_->uncopied()));
    }
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
        "{} threads; dense weights {:.1f} MB, resident experts {:.1f} MB, layerwise buffers {:.1f} "
        "MB, KV cache {} blocks of {} tokens {:.1f} MB",
        pool_->threads(), static_cast<double>(dense_bytes) / 1e6,
        static_cast<double>(resident_bytes) / 1e6, static_cast<double>(buffer_bytes) / 1e6,
        engine_->cache.shape().blocks, engine_->cache.shape().block_tokens,
        static_cast<double>(engine_->cache.bytes()) / 1e6);
    proto::WorkerFacts facts;
    facts.set_step_tokens_max(StepTokensMax(config.scheduler()));
    facts.set_kv_blocks(engine_->cache.shape().blocks);
    facts.set_weight_bytes(static_cast<int64_t>(total));
    facts.set_arena_bytes(static_cast<int64_t>(device_->used_bytes()));
    for (const DeviceAllocation& a : device_->allocations()) {
      proto::MemoryPool* pool = facts.add_pools();
      pool->set_name(a.what);
      pool->set_bytes(static_cast<int64_t>(a.bytes));
    }
    facts.set_threads(pool_->threads());
    facts.set_numa_node(-1);
    facts.set_kernels(Describe(choice));
    const PageUse pages = ReadPageUse(dense_.memory().data(), dense_.memory().bytes());
    facts.mutable_memory()->set_pages(PageKindName(pages.kind));
    facts.mutable_memory()->set_huge_share(pages.huge_share);
    facts.mutable_memory()->set_node_share(-1);
    SetPart(summary_.embeddings, facts.mutable_embeddings());
    const ExpertSets held = experts_->held();
    for (size_t l = 0; l < model_.layers.size(); ++l) {
      proto::LayerWeights* layer = facts.add_layers();
      layer->set_layer(static_cast<int>(l));
      SetPart(summary_.layers[l].attention, layer->mutable_attention());
      SetPart(summary_.layers[l].ffn, layer->mutable_ffn());
      size_t expert_bytes = 0;
      for (int e : held[l]) expert_bytes += experts_->bytes.resident[l][static_cast<size_t>(e)];
      SetExpertFacts(summary_, l, held[l].size(), expert_bytes, layer);
    }
    return facts;
  }

  grpc::Service* service() override { return service_.get(); }
  void Stop() override {
    engine_->engine->SetGroup(nullptr);
    engine_->engine->SetChannel(nullptr);
  }

 private:
  absl::Status PlanExperts(const ModelConfig& whole, const StoredModel& stored) {
    const proto::RuntimeConfig& config = context_.config;
    const std::string& dir = config.model().weight_path();
    std::unique_ptr<Checkpoint> checkpoint;
    StoredModel others;
    const bool elsewhere = dir != config.model().path();
    if (elsewhere) {
      KT_ASSIGN_OR_RETURN(checkpoint, Checkpoint::Open(dir));
      KT_ASSIGN_OR_RETURN(const ModelConfig other, LoadModelConfig(dir));  // its own formats
      KT_ASSIGN_OR_RETURN(others, ResolveWeights(other, *checkpoint, StoredParts::kExperts));
    }
    KT_ASSIGN_OR_RETURN(experts_, PlanRankExperts(config, whole, stored,
                                                  elsewhere ? others : stored, context_.index));
    return absl::OkStatus();
  }

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
    // What lies in slots is copied from workers that have checked it.
    if (experts_->slots) return rows;
    const ExpertSets held = experts_->held();
    auto experts = CheckExperts(
        {.config = &model_,
         .bank = &resident_,
         .sets = &held,
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
    const int ranks = config.device().tensor_parallel_size();
    KT_ASSIGN_OR_RETURN(engine_, BuildRankEngine({.config = &config,
                                                  .model = &model_,
                                                  .device = device_.get(),
                                                  .parallel = pool_.get(),
                                                  .isa = context_.isa,
                                                  .rank = context_.index,
                                                  .dense = &dense_,
                                                  .experts = experts_.get(),
                                                  .residents = &residents_,
                                                  .stream = stream_.get()}));
    const LocalGroup group{
        .rank = context_.index,
        .size = ranks,
        .spin_us = wait_.spin_us,
        .timeout_us = config.server().watchdog_timeout_s() * int64_t{1'000'000} + kGroupMarginUs};
    const MoeConfig moe = model_.moes.empty() ? MoeConfig{} : model_.moes[0];
    RingShape shape{.workers = config.experts().worker_count(),
                    .tokens_max = StepTokensMax(config.scheduler()),
                    .hidden = moe.width,
                    .top_k = moe.top_k,
                    .activation_bytes = engine_->ops->activation_bytes()};
    service_ = std::make_unique<WorkerService>(
        engine_->engine.get(), shape, RingWaitPolicy{wait_.spin_us}, group, context_.segments,
        [this](const proto::AttachExpertsRequest& request) { return MapArenas(request); },
        config.scheduler().gpu_prefill_token_threshold() < 0, [this] { pool_->BindCaller(); },
        [this](bool all) { return SelfCheck(all); });
    pool_->BeginActive();
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<const ExpertArenas>> MapArenas(
      const proto::AttachExpertsRequest& request) {
    if (!experts_->pieces) return nullptr;
    return ExpertArenas::Map(request, *experts_->pieces, context_.open_segment);
  }

  WorkerContext context_;
  topology::Topology topology_;
  topology::WaitPolicy wait_;
  std::unique_ptr<topology::ThreadPool> pool_;
  std::unique_ptr<Device> device_;
  ModelConfig model_;
  WeightSummary summary_;
  DenseWeights dense_;
  DeviceBuffer resident_memory_;
  ExpertBank resident_;
  std::unique_ptr<RankExperts> experts_;
  ResidentExperts residents_;
  std::unique_ptr<ExpertStream> stream_;
  std::unique_ptr<RankEngine> engine_;
  std::unique_ptr<WorkerService> service_;
};

}  // namespace
}  // namespace kt

int main(int argc, char** argv) {
  return kt::WorkerMain(argc, argv, kt::proto::WORKER_KIND_GPU, "kt-gpu-worker",
                        kt::GpuWorker::Make);
}
