// SPDX-License-Identifier: Apache-2.0
// kt-cpu-expert-worker: holds one NUMA node's slice of the experts that live on the CPU and answers
// expert tasks.
#include <thread>

#include "common/base/aligned_buffer.h"
#include "common/base/status.h"
#include "common/observe/timeline.h"
#include "common/placement/placement.h"
#include "common/topology/arena.h"
#include "common/topology/cpu_budget.h"
#include "common/topology/thread_pool.h"
#include "cpu_expert_worker/expert_service.h"
#include "spdlog/spdlog.h"
#include "worker/expert_arena.h"
#include "worker/expert_bank.h"
#include "worker/expert_timing.h"
#include "worker/kernel_choice.h"
#include "worker/layer_facts.h"
#include "worker/moe_shape.h"
#include "worker/step_limits.h"
#include "worker/worker_main.h"

namespace kt {
namespace {

proto::MemoryFacts MemoryFactsOf(const topology::ArenaFacts& arena) {
  proto::MemoryFacts facts;
  facts.set_pages(PageKindName(arena.pages.kind));
  facts.set_huge_share(arena.pages.huge_share);
  facts.set_node_share(arena.node_share);
  facts.set_gbytes_per_s(arena.gbytes_per_s);
  facts.set_huge_gbytes_per_s(arena.huge_gbytes_per_s);
  facts.set_warning(arena.warning);
  return facts;
}

class CpuExpertWorker final : public Worker {
 public:
  static absl::StatusOr<std::unique_ptr<Worker>> Make(const WorkerContext& context) {
    std::unique_ptr<CpuExpertWorker> w(new CpuExpertWorker);
    w->context_ = context;
    KT_ASSIGN_OR_RETURN(w->topology_, topology::Topology::Load());
    const proto::ExpertOptions& o = context.config.experts();
    KT_ASSIGN_OR_RETURN(
        topology::ThreadPlan plan,
        topology::SplitThreads({.expert_threads = o.cpuinfer_threads(),
                                .workers = o.worker_count(),
                                .nodes = {o.numa_nodes().begin(), o.numa_nodes().end()},
                                .device_threads = context.config.device().threads(),
                                .device_ranks = context.config.device().tensor_parallel_size(),
                                .usable_cores = o.usable_cores()},
                               w->topology_));
    w->wait_ = plan.wait;
    w->threads_ = plan.experts[static_cast<size_t>(context.index)];
    return std::unique_ptr<Worker>(std::move(w));
  }

  absl::StatusOr<proto::WorkerFacts> Load(
      const std::function<void(uint64_t, uint64_t)>& progress) override {
    const proto::RuntimeConfig& config = context_.config;
    const std::string& dir = config.model().weight_path();
    KT_ASSIGN_OR_RETURN(model_, LoadModelConfig(dir));
    KT_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(dir));
    KT_ASSIGN_OR_RETURN(StoredModel stored,
                        ResolveWeights(model_, *checkpoint, StoredParts::kExperts));
    const MoeConfig& moe = model_.moes[0];
    KT_ASSIGN_OR_RETURN(IntermediateSlice slice, SliceOfWorker(moe.intermediate, context_.index,
                                                               config.experts().worker_count()));
    KT_ASSIGN_OR_RETURN(Placement placement, InitialPlacement(config.experts(), model_));
    if (config.experts().dynamic_update()) {
      for (std::vector<int>& residents : placement.device) residents.clear();  // are here too
    }
    ExpertSets sets = placement.CpuExperts(model_);

    pool_ = std::make_unique<topology::ThreadPool>(topology_, "kt-expert", threads_.pins, wait_);
    if (!pool_->warning().empty()) spdlog::warn("{}", pool_->warning());
    const bool bf16 = config.device().activation_dtype() == "bf16";
    const ExpertForm form = ExpertFormOf(config.experts().method(), !bf16);
    const BankLayout layout(stored, sets, slice, form);
    const size_t bytes = layout.bytes();
    KT_RETURN_IF_ERROR(MakeArena(kArenaHeaderBytes + bytes));
    WriteArenaHeader(layout, arena_.segment.data());
    KT_ASSIGN_OR_RETURN(bank_, ExpertBank::Load(model_, stored, *checkpoint, sets, slice, form,
                                                arena_.segment.data() + kArenaHeaderBytes, *pool_,
                                                [&](uint64_t done) { progress(done, bytes); }));
    KT_RETURN_IF_ERROR(context_.put_segment(ExpertArenaName(context_.index, context_.incarnation),
                                            arena_.segment));
    sets_ = std::move(sets);
    summary_ = Summarize(stored, model_, config.experts().method());
    rows_ = slice.end - slice.begin;
    KT_RETURN_IF_ERROR(ChooseKernels(config.device(), bf16));
    if (config.selftest()) KT_RETURN_IF_ERROR(CheckRows(SelfCheck(false)));
    int tokens_max = StepTokensMax(config.scheduler());
    ffn_ = std::make_unique<MoeFfn>(MoeShapeOf(moe, slice.end - slice.begin), context_.isa,
                                    kMoeTokensPerPass);
    scratch_ = AlignedBuffer(ffn_->ScratchBytes(pool_->threads()));
    service_ = std::make_unique<ExpertService>(
        context_.index,
        RingShape{.workers = 1,
                  .tokens_max = tokens_max,
                  .hidden = moe.width,
                  .top_k = moe.top_k,
                  .activation_bytes = bf16 ? 2 : 4},
        RingWaitPolicy{wait_.spin_us},
        [this, bf16](const ExpertTask& task) { return Run(task, bf16); }, context_.segments,
        [this] { pool_->BindCaller(); },
        [this](bool all_layers) { return ToReply(SelfCheck(all_layers)); });
    const double ms_per_row = MeasureRow();
    pool_->BeginActive();

    spdlog::info("{} threads, {:.1f} MB of experts, rows {}-{} of {}", pool_->threads(),
                 static_cast<double>(bytes) / 1e6, slice.begin, slice.end, moe.intermediate);
    proto::WorkerFacts facts;
    facts.set_weight_bytes(static_cast<int64_t>(bytes));
    facts.set_arena_bytes(static_cast<int64_t>(arena_.segment.size()));
    facts.set_threads(pool_->threads());
    facts.set_numa_node(threads_.node);
    facts.set_kernels(kernels_);
    auto pool = [&facts](const char* name, size_t size) {
      proto::MemoryPool* out = facts.add_pools();
      out->set_name(name);
      out->set_bytes(static_cast<int64_t>(size));
    };
    pool("experts", arena_.segment.size());
    pool("scratch", scratch_.size());
    facts.set_expert_ms_per_row(ms_per_row);
    if (bytes > 0) *facts.mutable_memory() = MemoryFactsOf(arena_.facts);
    for (const topology::CpuSet& pin : threads_.pins)
      facts.mutable_cpus()->Add(pin.begin(), pin.end());
    for (size_t l = 0; l < sets_.size(); ++l) {
      if (sets_[l].empty()) continue;
      proto::LayerWeights* layer = facts.add_layers();
      layer->set_layer(static_cast<int>(l));
      SetExpertFacts(summary_, l, sets_[l].size(),
                     ExpertBank::LayerBytes(stored, sets_, l, slice, form), layer);
    }
    return facts;
  }

  grpc::Service* service() override { return service_.get(); }

 private:
  // On a thread that is pinned like the pool's others, so that all of them touch memory of their
  // node; what this thread starts later is not to inherit that.
  absl::Status MakeArena(size_t bytes) {
    absl::Status status;
    std::thread([&] {
      pool_->BindCaller();
      auto arena =
          topology::MakeArena("kt-expert-weights", bytes, topology_, threads_.memory_node, *pool_);
      status = arena.status();
      if (arena.ok()) arena_ = *std::move(arena);
    }).join();
    if (!status.ok()) return status;
    spdlog::info("expert weights: {}", topology::Describe(arena_.facts));
    if (!arena_.facts.warning.empty()) spdlog::warn("{}", arena_.facts.warning);
    return status;
  }

  absl::Status ChooseKernels(const proto::DeviceOptions& device, bool bf16) {
    PackedMatrix like{.k = model_.moes[0].width};
    for (size_t l = 0; l < sets_.size(); ++l) {
      if (!sets_[l].empty()) like = bank_.layer(static_cast<int>(l))[sets_[l].front()].gate;
    }
    KT_ASSIGN_OR_RETURN(const KernelChoice choice,
                        kt::ChooseKernels({context_.isa, device.deterministic(), bf16, like}));
    context_.isa = choice.isa;
    kernels_ = Describe(choice);
    spdlog::info("kernels: {}", kernels_);
    return absl::OkStatus();
  }

  std::vector<SelfCheckRow> SelfCheck(bool all_layers) {
    auto precision = [this](int l) {
      return summary_.layers[static_cast<size_t>(l)].experts.precision;
    };
    return CheckExperts({.config = &model_,
                         .bank = &bank_,
                         .sets = &sets_,
                         .intermediate = rows_,
                         .isa = context_.isa,
                         .bf16 = context_.config.device().activation_dtype() == "bf16",
                         .rounded = RoundedBits(context_.config.experts().method()) != 0,
                         .all_layers = all_layers,
                         .precision = precision},
                        *pool_);
  }

  // Of all layers' experts held here, from the time that many rows take in one of them; 0: nobody
  // needs it.
  double MeasureRow() {
    if (context_.config.scheduler().gpu_prefill_token_threshold() >= 0) return 0;
    double ms = 0;
    std::thread([&] {
      pool_->BindCaller();
      const bool bf16 = context_.config.device().activation_dtype() == "bf16";
      const ExpertTrial trial = MakeExpertTrial(model_, kMoeTokensPerPass, bf16);
      std::vector<float> y(static_cast<size_t>(trial.rows) *
                           static_cast<size_t>(model_.moes[0].width));
      ms = MsPerRow(model_, trial, [&] {
        Run({trial.layer, trial.rows, trial.x.data(), trial.ids.data(), trial.weights.data(),
             y.data()},
            bf16)
            .IgnoreError();
      });
    }).join();
    return ms;
  }

  absl::Status Run(const ExpertTask& task, bool bf16) {
    timeline::Span span("experts", "layer", task.layer);
    if (task.layer >= bank_.layers() || !model_.layers[static_cast<size_t>(task.layer)].moe) {
      return InvalidArgument("expert task: layer {} has no experts", task.layer);
    }
    ffn_->Run({.x = task.rows,
               .x_is_bf16 = bf16,
               .tokens = task.tokens,
               .ids = task.ids,
               .weights = task.weights,
               .experts = bank_.layer(task.layer),
               .y = task.results},
              scratch_.data(), *pool_);
    return absl::OkStatus();
  }

  WorkerContext context_;
  topology::Topology topology_;
  topology::WorkerThreads threads_;
  topology::WaitPolicy wait_;
  ModelConfig model_;
  topology::Arena arena_;
  ExpertBank bank_;
  ExpertSets sets_;
  WeightSummary summary_;
  int rows_ = 0;  // of the intermediate dimension
  std::string kernels_;
  std::unique_ptr<topology::ThreadPool> pool_;
  std::unique_ptr<MoeFfn> ffn_;
  AlignedBuffer scratch_;
  std::unique_ptr<ExpertService> service_;
};

}  // namespace
}  // namespace kt

int main(int argc, char** argv) {
  return kt::WorkerMain(argc, argv, kt::proto::WORKER_KIND_CPU_EXPERT, "kt-cpu-expert-worker",
                        kt::CpuExpertWorker::Make);
}
