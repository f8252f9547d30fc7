// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/kernel_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "cli/bench/bench_layers.h"
#include "cli/bench/bench_shape.h"
#include "cli/bench/median.h"
#include "cli/bench/tensor_file.h"
#include "common/base/bf16.h"
#include "common/base/status.h"
#include "common/topology/cpu_budget.h"
#include "common/topology/thread_pool.h"
#include "node/available_memory.h"

namespace kt::cli {
namespace {

// Tokens of one call: rows, and where they go.
struct Batch {
  std::vector<bf16> x;
  std::vector<int32_t> ids;  // [tokens, top_k], distinct within a token
  std::vector<float> weights, y;

  Batch(const MoeShape& shape, int tokens, std::mt19937_64& rng)
      : x(static_cast<size_t>(tokens) * shape.hidden),
        ids(static_cast<size_t>(tokens) * shape.top_k),
        weights(ids.size(), 1.0f / static_cast<float>(shape.top_k)),
        y(x.size()),
        experts_(shape.num_experts),
        top_k_(shape.top_k) {
    std::normal_distribution<float> normal;
    for (bf16& value : x) value = ToBf16(normal(rng));
    std::iota(experts_.begin(), experts_.end(), 0);
  }

  // Draws new experts for every token; returns how many are active.
  int Route(std::mt19937_64& rng) {
    std::vector<bool> active(experts_.size());
    for (size_t slot = 0; slot < ids.size(); ++slot) {
      const size_t first = slot % top_k_;  // experts before it are taken by this token
      std::swap(experts_[first], experts_[first + rng() % (experts_.size() - first)]);
      ids[slot] = experts_[first];
      active[ids[slot]] = true;
    }
    return static_cast<int>(std::count(active.begin(), active.end(), true));
  }

 private:
  std::vector<int32_t> experts_;
  size_t top_k_;
};

// What all rows share.
struct Machine {
  topology::Topology topology;
  Isa isa;
  std::unique_ptr<Checkpoint> weights;  // null: random ones
  TensorFile* dump;                     // null: none
};

void Dump(const MoeShape& shape, int tokens, const Batch& batch, TensorFile* file) {
  file->Set(fmt::format("{}.x", tokens), DType::kBF16, {tokens, shape.hidden}, batch.x.data());
  file->Set(fmt::format("{}.ids", tokens), DType::kI32, {tokens, shape.top_k}, batch.ids.data());
  file->Set(fmt::format("{}.weights", tokens), DType::kF32, {tokens, shape.top_k},
            batch.weights.data());
  file->Set(fmt::format("{}.y", tokens), DType::kF32, {tokens, shape.hidden}, batch.y.data());
}

// The rows of one format, shape and number of threads.
void MeasureRows(const Machine& machine, const KernelBenchOptions& options,
                 const BenchFormat& format, const BenchLayers& layers, const MoeShape& shape,
                 topology::ThreadPool& pool, MachineProbe& probe, std::vector<KernelRow>& rows) {
  constexpr double kSlices = 5;  // the machine is measured anew before each
  const MoeFfn ffn(shape, machine.isa, kMoeTokensPerPass);
  const AlignedBuffer scratch(ffn.ScratchBytes(pool.threads()));
  std::mt19937_64 rng(1);
  MachineRates rates;
  int call = 0;
  for (KernelRow& row : rows) {
    Batch batch(shape, row.tokens, rng);
    row.operations =
        6.0 * static_cast<double>(batch.ids.size()) * shape.hidden * shape.intermediate;
    const auto run = [&](int layer) {
      const MoeArgs args{.x = batch.x.data(),
                         .x_is_bf16 = true,
                         .tokens = row.tokens,
                         .ids = batch.ids.data(),
                         .weights = batch.weights.data(),
                         .experts = layers.layer(layer),
                         .y = batch.y.data()};
      const double start = SecondsNow();
      ffn.Run(args, scratch.data(), pool);
      return SecondsNow() - start;
    };
    for (double spent = 0; row.samples.size() < 2 || spent < options.seconds;) {
      probe.Measure(format.multiply, machine.isa, pool, &rates);
      const double end = spent + options.seconds / kSlices;
      do {
        const int active = batch.Route(rng);
        const double seconds = run(call++ % layers.layers());
        row.samples.push_back(
            {seconds, active, static_cast<double>(layers.expert_bytes()) * active});
        spent += seconds;
      } while (spent < end);
    }
    if (machine.dump == nullptr) continue;
    run(0);
    Dump(shape, row.tokens, batch, machine.dump);
  }
  for (KernelRow& row : rows) row.machine = rates;
}

// Random layers that memory has room for; takes experts out of the shape where it has not.
absl::StatusOr<BenchLayers> RandomLayers(const Machine& machine, const BenchFormat& format,
                                         const std::string& shape_name, MoeShape* shape,
                                         int memory_node, Parallel& parallel) {
  constexpr double kMemoryShare = 0.8;
  const auto available = static_cast<size_t>(kMemoryShare * AvailableMemoryBytes());
  const size_t probe_bytes = MachineProbe::Bytes(machine.topology);
  KT_ASSIGN_OR_RETURN(
      const LayerPlan plan,
      PlanLayers(*shape, BenchLayers::ExpertBytes(format, *shape), CacheBytes(machine.topology),
                 available - std::min(available, probe_bytes)));
  if (plan.experts < shape->num_experts) {
    fmt::print(stderr, "{} {}: memory has room for two layers of {} experts, not {}\n", format.name,
               shape_name, plan.experts, shape->num_experts);
  }
  shape->num_experts = plan.experts;
  return BenchLayers::Random(format, *shape, plan.layers, machine.topology, memory_node, parallel);
}

absl::Status RunShape(const Machine& machine, const KernelBenchOptions& options,
                      const BenchFormat& format, const std::string& shape_name, MoeShape shape,
                      const std::function<void(const KernelRow&)>& on_row) {
  std::optional<BenchLayers> layers;
  for (int threads : options.threads) {
    KT_ASSIGN_OR_RETURN(
        const topology::ThreadPlan split,
        topology::SplitThreads({.expert_threads = threads, .workers = 1}, machine.topology));
    for (const std::string& warning : split.warnings) fmt::print(stderr, "{}\n", warning);
    const topology::WorkerThreads& worker = split.experts[0];
    topology::ThreadPool pool(machine.topology, "kt-bench", worker.pins);
    pool.BindCaller();
    if (!pool.warning().empty()) fmt::print(stderr, "{}\n", pool.warning());
    pool.BeginActive();
    if (!layers) {
      auto made = machine.weights
                      ? BenchLayers::Load(format, shape, *machine.weights, machine.topology,
                                          worker.memory_node, pool)
                      : RandomLayers(machine, format, shape_name, &shape, worker.memory_node, pool);
      KT_RETURN_IF_ERROR(made.status());
      layers = *std::move(made);
      fmt::print(stderr, "{} {}: {} layers, {:.1f} GB\n", format.name, shape_name, layers->layers(),
                 static_cast<double>(layers->bytes()) / 1e9);
    }
    MachineProbe probe(machine.topology, worker.memory_node, pool);
    std::vector<KernelRow> rows;
    for (int tokens : options.tokens) {
      rows.push_back({.format = format.name,
                      .shape = shape_name,
                      .isa = IsaName(machine.isa),
                      .experts = shape.num_experts,
                      .layers = layers->layers(),
                      .tokens = tokens,
                      .threads = threads});
    }
    MeasureRows(machine, options, format, *layers, shape, pool, probe, rows);
    for (const KernelRow& row : rows) on_row(row);
  }
  return absl::OkStatus();
}

}  // namespace

Json KernelRow::ToJson() const {
  std::vector<double> seconds, shares;
  KernelSample best{};
  TimeLimit best_limit{};
  for (const KernelSample& sample : samples) {
    const TimeLimit limit = LimitOf(sample.bytes, operations, machine);
    seconds.push_back(sample.seconds);
    shares.push_back(limit.seconds / sample.seconds);
    if (shares.back() == *std::max_element(shares.begin(), shares.end()))
      best = sample, best_limit = limit;
  }
  return {{"format", format},
          {"isa", isa},
          {"shape", shape},
          {"experts", experts},
          {"layers", layers},
          {"tokens", tokens},
          {"threads", threads},
          {"calls", samples.size()},
          {"active_experts", best.active_experts},
          {"ms", best.seconds * 1e3},
          {"ms_median", Median(seconds) * 1e3},
          {"gbytes_per_s", best.bytes / best.seconds / 1e9},
          {"gflops", operations / best.seconds / 1e9},
          {"limit", best_limit.seconds * 1e3},
          {"limited_by", best_limit.memory ? "memory" : "compute"},
          {"share_of_limit", best_limit.seconds / best.seconds},
          {"share_of_limit_median", Median(shares)},
          {"machine_gbytes_per_s", machine.bytes_per_s / 1e9},
          {"machine_gflops", machine.operations_per_s / 1e9}};
}

absl::Status RunKernelBench(const KernelBenchOptions& asked,
                            const std::function<void(const KernelRow&)>& on_row) {
  KernelBenchOptions options = asked;
  std::vector<const BenchFormat*> formats;
  for (const std::string& name : options.formats) {
    KT_ASSIGN_OR_RETURN(const BenchFormat* format, FindBenchFormat(name));
    formats.push_back(format);
  }
  if (formats.empty()) {
    for (const BenchFormat& format : BenchFormats()) formats.push_back(&format);
  }
  std::vector<MoeShape> shapes;
  for (const std::string& name : options.shapes) {
    KT_ASSIGN_OR_RETURN(const MoeShape shape, ParseBenchShape(name));
    shapes.push_back(shape);
  }
  KT_ASSIGN_OR_RETURN(const Isa isa, SelectIsa());
  KT_RETURN_IF_ERROR(GemmReady(isa));
  KT_ASSIGN_OR_RETURN(topology::Topology topology, topology::Topology::Load());
  const topology::CpuBudget budget = topology::MeasureCpuBudget(topology);
  if (options.threads.empty()) {
    options.threads = {1};
    if (budget.usable_cores > 1) options.threads.push_back(budget.usable_cores);
  }
  fmt::print(stderr, "{}, {}, {}\n", CpuModelName(), IsaName(isa), topology::Describe(budget));
  TensorFile dump;
  Machine machine{std::move(topology), isa, nullptr, options.dump.empty() ? nullptr : &dump};
  if (!options.weights.empty()) {
    if (formats.size() != 1 || shapes.size() != 1)
      return InvalidArgument("--weights: name its one --format and one --shape");
    KT_ASSIGN_OR_RETURN(machine.weights, Checkpoint::Open(options.weights));
  }
  for (size_t s = 0; s < shapes.size(); ++s) {
    for (const BenchFormat* format : formats)
      KT_RETURN_IF_ERROR(RunShape(machine, options, *format, options.shapes[s], shapes[s], on_row));
  }
  return options.dump.empty() ? absl::OkStatus() : dump.Write(options.dump);
}

}  // namespace kt::cli
