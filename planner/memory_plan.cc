// SPDX-License-Identifier: Apache-2.0
#include "planner/memory_plan.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "common/base/status.h"
#include "common/ipc/expert_ring.h"
#include "common/placement/placement.h"
#include "common/weights/tensor_shard.h"
#include "gpu_worker/collective/collective.h"
#include "gpu_worker/rank_engine.h"
#include "planner/measuring_device.h"
#include "worker/expert_arena.h"
#include "worker/expert_bank.h"
#include "worker/moe_shape.h"
#include "worker/step_limits.h"

namespace kt {
namespace {

// Measured: what processes keep beyond their pools. A worker with its libraries, gRPC and threads;
// a coordinator without its tokenizer, and that for each token of the vocabulary; the Python
// interpreter of kt-template; kt-node.
constexpr int64_t kWorkerBytes = 10'000'000;
constexpr int64_t kCoordinatorBytes = 12'000'000, kTokenBytes = 160;
constexpr int64_t kTemplateBytes = 14'000'000;
constexpr int64_t kNodeBytes = 2'000'000;

// Threads that compute nothing.
class ThreadCount final : public Parallel {
 public:
  explicit ThreadCount(int threads) : threads_(std::max(1, threads)) {}
  int threads() const override { return threads_; }
  void Run(int, FunctionRef<void(int, int)>) override {}

 private:
  const int threads_;
};

bool IsBf16(const proto::RuntimeConfig& config) {
  return config.device().activation_dtype() == "bf16";
}

absl::StatusOr<PlannedProcess> PlanRank(const proto::RuntimeConfig& config,
                                        const PlannedModel& model, Isa isa, int rank) {
  PlannedProcess process{.name = fmt::format("kt-gpu-worker-{}", rank)};
  const int ranks = config.device().tensor_parallel_size();
  KT_RETURN_IF_ERROR(CheckShards(*model.config, ranks));
  const TensorShard shard = ShardOf(*model.config, *model.weights, rank, ranks);
  KT_ASSIGN_OR_RETURN(
      const std::unique_ptr<RankExperts> experts,
      PlanRankExperts(config, *model.config, shard.stored,
                      model.expert_weights == model.weights ? shard.stored : *model.expert_weights,
                      rank));
  auto weights = [&](const char* name, size_t bytes) {
    if (bytes > 0) process.pools.push_back({name, static_cast<int64_t>(bytes), PoolKind::kStatic});
  };
  weights("dense weights", DenseWeights::Bytes(shard.config, shard.stored,
                                               {.exact = !IsBf16(config),
                                                .plain_latent = !config.device().deterministic()}));
  weights("resident experts (--kt-num-gpu-experts)",
          experts->ResidentBytes(shard.config, shard.stored));

  MeasuringDevice device;
  ThreadCount threads(config.device().threads() / ranks);
  std::unique_ptr<ExpertStream> stream;
  if (experts->pieces) {
    KT_ASSIGN_OR_RETURN(stream,
                        ExpertStream::Create(device, *experts->pieces, experts->uncopied()));
  }
  const DenseWeights dense;
  ResidentExperts residents;
  KT_ASSIGN_OR_RETURN(const std::unique_ptr<RankEngine> engine,
                      BuildRankEngine({.config = &config,
                                       .model = &shard.config,
                                       .device = &device,
                                       .parallel = &threads,
                                       .isa = isa,
                                       .rank = rank,
                                       .dense = &dense,
                                       .experts = experts.get(),
                                       .residents = &residents,
                                       .stream = stream.get()}));
  for (const DeviceAllocation& a : device.allocations()) {
    const bool cache = a.bytes == engine->cache.bytes() && a.what.starts_with("KV cache");
    process.pools.push_back(
        {a.what, static_cast<int64_t>(a.bytes), cache ? PoolKind::kStatic : PoolKind::kWorkspace});
  }
  process.pools.push_back({"program", kWorkerBytes, PoolKind::kHost});
  return process;
}

absl::StatusOr<PlannedProcess> PlanExpertWorker(const proto::RuntimeConfig& config,
                                                const PlannedModel& model, Isa isa, int index) {
  PlannedProcess process{.name = fmt::format("kt-cpu-expert-worker-{}", index)};
  const MoeConfig& moe = model.config->moes[0];
  const int workers = config.experts().worker_count();
  KT_ASSIGN_OR_RETURN(const IntermediateSlice slice,
                      SliceOfWorker(moe.intermediate, index, workers));
  KT_ASSIGN_OR_RETURN(Placement placement, InitialPlacement(config.experts(), *model.config));
  if (config.experts().dynamic_update())
    placement.device.assign(placement.device.size(), {});  // are there too
  const size_t arena =
      ExpertBank::Bytes(*model.config, *model.expert_weights, placement.CpuExperts(*model.config),
                        slice, ExpertFormOf(config.experts().method(), !IsBf16(config)));
  process.pools.push_back(
      {"experts", static_cast<int64_t>(kArenaHeaderBytes + arena), PoolKind::kHost});
  const int threads = config.experts().cpuinfer_threads() / workers +
                      (index < config.experts().cpuinfer_threads() % workers ? 1 : 0);
  const MoeFfn ffn(MoeShapeOf(moe, slice.end - slice.begin), isa, kMoeTokensPerPass);
  process.pools.push_back(
      {"scratch", static_cast<int64_t>(ffn.ScratchBytes(std::max(1, threads))), PoolKind::kHost});
  process.pools.push_back({"program", kWorkerBytes, PoolKind::kHost});
  return process;
}

std::string Gb(int64_t bytes) {
  return bytes < 100'000'000 ? fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6)
                             : fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
}

}  // namespace

int64_t PlannedProcess::device_bytes() const {
  int64_t bytes = 0;
  for (const PlannedPool& p : pools) bytes += p.kind == PoolKind::kHost ? 0 : p.bytes;
  return bytes;
}

int64_t MemoryPlan::host_bytes() const {
  int64_t bytes = 0;
  for (const PlannedProcess& process : processes) {
    for (const PlannedPool& p : process.pools)
      bytes += p.kind == PoolKind::kHost || machine.device_is_host ? p.bytes : 0;
  }
  return bytes;
}

std::vector<std::string> MemoryPlan::Shortfalls() const {
  std::vector<std::string> all;
  for (const PlannedProcess& process : processes) {
    if (machine.device_bytes == 0) break;
    int64_t fixed = 0;
    for (const PlannedPool& p : process.pools) fixed += p.kind == PoolKind::kStatic ? p.bytes : 0;
    const auto allowed =
        static_cast<int64_t>(static_cast<double>(machine.device_bytes) * static_fraction);
    if (process.device_bytes() > machine.device_bytes) {
      all.push_back(fmt::format("{} needs {} of device memory, --device-memory-bytes gives {}",
                                process.name, Gb(process.device_bytes()),
                                Gb(machine.device_bytes)));
    } else if (static_fraction > 0 && fixed > allowed) {
      all.push_back(fmt::format(
          "{}: weights and cache take {}, --mem-fraction-static {} of {} leaves {} for them",
          process.name, Gb(fixed), static_fraction, Gb(machine.device_bytes), Gb(allowed)));
    }
  }
  if (host_bytes() > machine.host_bytes)
    all.push_back(fmt::format("{} of memory are needed, {} can be had", Gb(host_bytes()),
                              Gb(machine.host_bytes)));
  return all;
}

absl::StatusOr<MemoryPlan> PlanMemory(const proto::RuntimeConfig& config, const PlannedModel& model,
                                      const MachineMemory& machine) {
  MemoryPlan plan{.machine = machine, .static_fraction = config.device().mem_fraction_static()};
  KT_ASSIGN_OR_RETURN(const Isa isa, SelectIsa());
  auto host = [](std::string name, std::string pool, int64_t bytes) {
    return PlannedProcess{std::move(name), {{std::move(pool), bytes, PoolKind::kHost}}};
  };
  plan.processes.push_back(host("kt-node", "program", kNodeBytes));
  plan.processes.push_back(host("kt-coordinator", "program and tokenizer",
                                kCoordinatorBytes + kTokenBytes * model.config->vocab));
  plan.processes.push_back(host("kt-template", "program", kTemplateBytes));
  for (int rank = 0; rank < config.device().tensor_parallel_size(); ++rank) {
    KT_ASSIGN_OR_RETURN(PlannedProcess process, PlanRank(config, model, isa, rank));
    plan.processes.push_back(std::move(process));
  }
  if (config.device().tensor_parallel_size() > 1) {
    plan.processes.back().pools.push_back(
        {"collective",
         static_cast<int64_t>(LocalGroupBytes(config.device().tensor_parallel_size())),
         PoolKind::kHost});
  }
  if (model.config->moes.empty()) return plan;
  const MoeConfig& moe = model.config->moes[0];
  if (config.experts().transport() == "ring") {
    const RingShape ring{.workers = config.experts().worker_count(),
                         .tokens_max = StepTokensMax(config.scheduler()),
                         .hidden = moe.width,
                         .top_k = moe.top_k,
                         .activation_bytes = IsBf16(config) ? 2 : 4};
    plan.processes.back().pools.push_back(
        {"expert ring", static_cast<int64_t>(RingBytes(ring)), PoolKind::kHost});
  }
  for (int i = 0; i < config.experts().worker_count(); ++i) {
    KT_ASSIGN_OR_RETURN(PlannedProcess process, PlanExpertWorker(config, model, isa, i));
    plan.processes.push_back(std::move(process));
  }
  return plan;
}

namespace {

int64_t MoeLayers(const ModelConfig& model) {
  return std::max<int64_t>(1,
                           std::count_if(model.layers.begin(), model.layers.end(),
                                         [](const LayerConfig& l) { return l.moe.has_value(); }));
}

int64_t Residents(const proto::RuntimeConfig& c) {
  int64_t count = 0;
  for (const proto::LayerResidents& layer : c.experts().residents()) count += layer.experts_size();
  return count;
}

// A flag that the plan depends on: less of it, less memory.
struct Knob {
  const char* flag;
  int64_t (*get)(const ModelConfig&, const proto::RuntimeConfig&);
  void (*set)(const ModelConfig&, proto::RuntimeConfig&, int64_t);
  int64_t least;
  int64_t step;  // values are multiples of it, but for the largest
};

const std::vector<Knob>& Knobs() {
  static const std::vector<Knob> knobs = {
      {"--kt-num-gpu-experts",
       [](const ModelConfig& m, const proto::RuntimeConfig& c) {
         return (Residents(c) + MoeLayers(m) - 1) / MoeLayers(m);
       },
       [](const ModelConfig& m, proto::RuntimeConfig& c, int64_t v) {
         // Which ones makes no difference to the memory.
         for (int64_t left = Residents(c) - v * MoeLayers(m); left > 0;) {
           auto* layers = c.mutable_experts()->mutable_residents();
           auto* last = layers->rbegin()->mutable_experts();
           const int cut = static_cast<int>(std::min<int64_t>(left, last->size()));
           last->Truncate(last->size() - cut);
           if (last->empty()) layers->RemoveLast();
           left -= cut;
         }
       },
       0, 1},
      {"--kt-gpu-prefill-token-threshold",
       [](const ModelConfig&, const proto::RuntimeConfig& c) {
         return std::abs(int64_t{c.scheduler().gpu_prefill_token_threshold()});  // -1: auto
       },
       [](const ModelConfig&, proto::RuntimeConfig& c, int64_t v) {
         c.mutable_scheduler()->set_gpu_prefill_token_threshold(static_cast<int32_t>(v));
         if (v == 0) c.mutable_experts()->set_dynamic_update(false);
       },
       0, 1},
      {"--max-total-tokens",
       [](const ModelConfig&, const proto::RuntimeConfig& c) {
         return int64_t{c.scheduler().max_total_tokens()};
       },
       [](const ModelConfig&, proto::RuntimeConfig& c, int64_t v) {
         c.mutable_scheduler()->set_max_total_tokens(static_cast<int32_t>(v));
         // The context is never longer than the cache (run_config.cc).
         c.mutable_model()->set_context_length(
             std::min(c.model().context_length(), static_cast<int32_t>(v)));
       },
       256, 16},
      {"--chunked-prefill-size",
       [](const ModelConfig&, const proto::RuntimeConfig& c) {
         return int64_t{c.scheduler().chunked_prefill_size()};
       },
       [](const ModelConfig&, proto::RuntimeConfig& c, int64_t v) {
         c.mutable_scheduler()->set_chunked_prefill_size(static_cast<int32_t>(v));
       },
       32, 32},
      {"--max-running-requests",
       [](const ModelConfig&, const proto::RuntimeConfig& c) {
         return int64_t{c.scheduler().max_running_requests()};
       },
       [](const ModelConfig&, proto::RuntimeConfig& c, int64_t v) {
         c.mutable_scheduler()->set_max_running_requests(static_cast<int32_t>(v));
       },
       1, 1},
  };
  return knobs;
}

bool Fits(const proto::RuntimeConfig& config, const PlannedModel& model,
          const MachineMemory& machine) {
  absl::StatusOr<MemoryPlan> plan = PlanMemory(config, model, machine);
  return plan.ok() && plan->fits();
}

// The largest value up to that of `config` at which it fits; nullopt: even the least does not.
std::optional<int64_t> Largest(const Knob& knob, const proto::RuntimeConfig& config,
                               const PlannedModel& model, const MachineMemory& machine) {
  const int64_t asked = knob.get(*model.config, config);
  auto fits = [&](int64_t value) {
    proto::RuntimeConfig changed = config;
    knob.set(*model.config, changed, value);
    return Fits(changed, model, machine);
  };
  if (asked <= knob.least || !fits(knob.least)) return std::nullopt;
  int64_t low = 0, high = (asked - knob.least) / knob.step;  // in steps above the least
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (fits(knob.least + middle * knob.step)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return knob.least + low * knob.step;
}

}  // namespace

std::vector<PlanFix> SmallestChanges(const proto::RuntimeConfig& config, const PlannedModel& model,
                                     const MachineMemory& machine) {
  std::vector<PlanFix> fixes;
  for (const Knob& knob : Knobs()) {
    if (const auto to = Largest(knob, config, model, machine))
      fixes.push_back({{knob.flag, knob.get(*model.config, config), *to}});
  }
  if (!fixes.empty()) return fixes;
  // One after the other to its least, until one of them is enough.
  proto::RuntimeConfig changed = config;
  PlanFix together;
  for (const Knob& knob : Knobs()) {
    const int64_t asked = knob.get(*model.config, config);
    if (asked <= knob.least) continue;
    const auto to = Largest(knob, changed, model, machine);
    together.push_back({knob.flag, asked, to.value_or(knob.least)});
    if (to) return {together};
    knob.set(*model.config, changed, knob.least);
  }
  return {};
}

std::string FixText(const std::vector<PlanFix>& fixes) {
  if (fixes.empty()) {
    std::vector<std::string> least;
    for (const Knob& knob : Knobs()) least.push_back(fmt::format("{} {}", knob.flag, knob.least));
    return fmt::format("{} together are not enough", fmt::join(least, ", "));
  }
  std::vector<std::string> alternatives;
  for (const PlanFix& fix : fixes) {
    std::vector<std::string> flags;
    for (const PlanChange& c : fix)
      flags.push_back(fmt::format("{} {} (now {})", c.flag, c.to, c.from));
    alternatives.push_back(fmt::format("{}", fmt::join(flags, " with ")));
  }
  return fmt::format("what would fit: {}", fmt::join(alternatives, ", or "));
}

std::string PlanText(const MemoryPlan& plan, const std::vector<PlanFix>& fixes) {
  std::string text;
  for (const PlannedProcess& process : plan.processes) {
    for (const PlannedPool& pool : process.pools) {
      text +=
          fmt::format("{:<24}{:<8}{:>12}  {}\n", process.name,
                      pool.kind == PoolKind::kHost ? "host" : "device", Gb(pool.bytes), pool.name);
    }
  }
  for (const PlannedProcess& process : plan.processes) {
    if (process.device_bytes() == 0 || plan.machine.device_bytes == 0) continue;
    text += fmt::format("{}: {} of {} device memory\n", process.name, Gb(process.device_bytes()),
                        Gb(plan.machine.device_bytes));
  }
  text += fmt::format("all processes: {} of {} host memory{}\n", Gb(plan.host_bytes()),
                      Gb(plan.machine.host_bytes),
                      plan.machine.device_is_host ? ", the host device's included" : "");
  const std::vector<std::string> shortfalls = plan.Shortfalls();
  for (const std::string& shortfall : shortfalls) text += "does not fit: " + shortfall + "\n";
  if (shortfalls.empty()) {
    text += "fits\n";
  } else {
    text += FixText(fixes) + "\n";
  }
  return text;
}

Json PlanJson(const MemoryPlan& plan, const std::vector<PlanFix>& fixes) {
  Json json{{"fits", plan.fits()},
            {"host_bytes", plan.host_bytes()},
            {"host_bytes_available", plan.machine.host_bytes},
            {"device_bytes_available", plan.machine.device_bytes},
            {"shortfalls", plan.Shortfalls()},
            {"processes", Json::array()},
            {"fixes", Json::array()}};
  for (const PlannedProcess& process : plan.processes) {
    Json pools = Json::array();
    for (const PlannedPool& pool : process.pools) {
      pools.push_back({{"name", pool.name},
                       {"bytes", pool.bytes},
                       {"where", pool.kind == PoolKind::kHost ? "host" : "device"}});
    }
    json["processes"].push_back({{"name", process.name},
                                 {"device_bytes", process.device_bytes()},
                                 {"pools", std::move(pools)}});
  }
  for (const PlanFix& fix : fixes) {
    Json changes = Json::array();
    for (const PlanChange& c : fix)
      changes.push_back({{"flag", c.flag}, {"from", c.from}, {"to", c.to}});
    json["fixes"].push_back(std::move(changes));
  }
  return json;
}

}  // namespace kt
