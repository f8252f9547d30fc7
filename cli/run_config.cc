// SPDX-License-Identifier: Apache-2.0
#include "cli/run_config.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <random>
#include <system_error>

#include "common/base/status.h"
#include "common/placement/expert_counts.h"
#include "common/placement/strategy.h"
#include "common/weights/tensor_shard.h"
#include "common/weights/weight_summary.h"

namespace kt::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kBlockTokens = 16;
constexpr int64_t kTotalTokensDefaultMax = 32768;
constexpr int64_t kCachedStatesDefaultMax = 32;  // tens of MB each
constexpr int64_t kRecorderBytesMax = int64_t{1} << 30;

int32_t Narrow(int64_t value) { return static_cast<int32_t>(value); }

absl::Status FillModel(const RunOptions& o, const ModelConfig& model, proto::ModelOptions* out) {
  std::error_code error;
  fs::path path = fs::canonical(o.model, error);
  if (error) return InvalidArgument("--model {}: {}", o.model, error.message());
  fs::path weight_path = path;
  if (!o.weight_path.empty()) {
    weight_path = fs::canonical(o.weight_path, error);
    if (error) return InvalidArgument("--kt-weight-path {}: {}", o.weight_path, error.message());
  }
  if (o.context_length > model.max_position) {
    return InvalidArgument(
        "--context-length {}: the model is made for {} tokens; give at most that", o.context_length,
        model.max_position);
  }
  if (!o.chat_template.empty()) {
    fs::path file = fs::canonical(o.chat_template, error);
    if (error || !fs::is_regular_file(file))
      return InvalidArgument("--chat-template {}: is not a file", o.chat_template);
    out->set_chat_template_path(file.string());
  }
  out->set_path(path.string());
  out->set_weight_path(weight_path.string());
  out->set_served_model_name(o.served_model_name.empty() ? path.filename().string()
                                                         : o.served_model_name);
  out->set_context_length(o.context_length > 0 ? Narrow(o.context_length) : model.max_position);
  out->set_sampling_defaults(o.sampling_defaults);
  return absl::OkStatus();
}

void FillServer(const RunOptions& o, proto::ServerOptions* out) {
  out->set_host(o.host);
  out->set_port(Narrow(o.port));
  out->set_api_key(o.api_key);
  out->set_grpc_port(Narrow(o.grpc_port));
  out->set_body_bytes_max(o.body_bytes_max);
  out->set_connections_max(Narrow(o.connections_max));
  out->set_header_timeout_ms(Narrow(o.header_timeout_ms));
  out->set_body_timeout_ms(Narrow(o.body_timeout_ms));
  out->set_drain_timeout_ms(Narrow(o.drain_timeout_ms));
  out->set_stream_buffer_bytes_max(o.stream_buffer_bytes_max);
  out->set_queue_timeout_ms(Narrow(o.queue_timeout_ms));
  out->set_watchdog_timeout_s(Narrow(o.watchdog_timeout_s));
}

// How many experts live on the device, of all layers together.
int64_t GpuExperts(const RunOptions& o, const ModelConfig& model, proto::ExpertOptions* experts) {
  if (o.gpu_experts_ratio >= 0) {
    return static_cast<int64_t>(o.gpu_experts_ratio * static_cast<double>(TotalExperts(model)));
  }
  int64_t most = 0, count = 0;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    most = std::max<int64_t>(most, ExpertsOf(model, l));
    count += std::min<int64_t>(o.num_gpu_experts, ExpertsOf(model, l));
  }
  if (o.num_gpu_experts > most) {
    experts->add_warnings(
        fmt::format("--kt-num-gpu-experts {}: a layer of the model has {} experts; all of them "
                    "live on the device",
                    o.num_gpu_experts, most));
  }
  return count;
}

absl::Status FillPlacement(const RunOptions& o, const ModelConfig& model,
                           proto::ExpertOptions* experts) {
  const int64_t count = GpuExperts(o, model, experts);
  KT_ASSIGN_OR_RETURN(PlacementStrategy strategy, ParsePlacementStrategy(o.placement_strategy));
  ExpertCounts use;
  if (o.init_expert_location != "trivial") {
    const auto read = [&]() -> absl::StatusOr<ExpertCounts> {
      KT_ASSIGN_OR_RETURN(ExpertCounts counts, ReadExpertCounts(o.init_expert_location));
      const absl::Status fits = CheckShape(counts, model);
      if (!fits.ok()) return Annotate(fits, o.init_expert_location);
      return counts;
    };
    absl::StatusOr<ExpertCounts> counts = read();
    if (!counts.ok()) return Annotate(counts.status(), "--init-expert-location");
    use = *std::move(counts);
  }
  const bool frequency = strategy == PlacementStrategy::kFrequency;
  if (frequency && use.empty()) {
    experts->add_warnings(
        "--kt-expert-placement-strategy frequency: there are no statistics "
        "(--init-expert-location), so experts are placed as with uniform");
    strategy = PlacementStrategy::kUniform;
  } else if (!frequency && !use.empty()) {
    experts->add_warnings(fmt::format(
        "--init-expert-location {}: is used with --kt-expert-placement-strategy frequency only",
        o.init_expert_location));
  }
  experts->set_placement_strategy(o.placement_strategy);
  SetResidents(PlaceExperts(strategy, count, model, use), experts);
  return absl::OkStatus();
}

absl::Status FillRecorder(const RunOptions& o, const ModelConfig& model,
                          proto::RecorderOptions* out) {
  const auto layers = std::max<int64_t>(1, static_cast<int64_t>(model.layers.size()));
  int64_t experts = 1;
  for (const MoeConfig& moe : model.moes) experts = std::max<int64_t>(experts, moe.num_experts);
  const int64_t most = kRecorderBytesMax / (4 * layers * experts);
  const bool per_pass = o.recorder_mode == "per_pass";
  if (o.recorder_buffer_size == 0 ||
      (per_pass && (o.recorder_buffer_size < 0 || o.recorder_buffer_size > most))) {
    return InvalidArgument(
        "--expert-distribution-recorder-buffer-size {}: must be from 1 to {} (1 GiB of counts of "
        "{} layers and {} experts), or -1 with mode stat",
        o.recorder_buffer_size, most, layers, experts);
  }
  std::error_code error;
  const fs::path asked =
      o.recorder_dir.empty() ? fs::temp_directory_path(error) : fs::path(o.recorder_dir);
  const fs::path dir = fs::canonical(asked, error);
  if (error || !fs::is_directory(dir, error)) {
    return InvalidArgument("--expert-distribution-recorder-dir {}: is not a directory",
                           asked.string());
  }
  out->set_mode(o.recorder_mode);
  out->set_buffer_size(per_pass ? Narrow(o.recorder_buffer_size) : 0);
  out->set_directory(dir.string());
  return absl::OkStatus();
}

struct Workers {
  int64_t count = 0;  // 0: not given
  std::vector<int64_t> nodes;
};

// What --kt-threadpool-count, --kt-numa-nodes and --numa-nodes ask for together.
absl::StatusOr<Workers> AskedWorkers(const RunOptions& o) {
  Workers workers{o.threadpool_count, o.numa_nodes};
  if (o.numa_count_or_nodes.size() == 1) {
    if (workers.count != 0 && workers.count != o.numa_count_or_nodes[0]) {
      return InvalidArgument(
          "--numa-nodes {}: contradicts --kt-threadpool-count {}; give one of them",
          o.numa_count_or_nodes[0], workers.count);
    }
    workers.count = o.numa_count_or_nodes[0];
    if (workers.count < 1)
      return InvalidArgument("--numa-nodes {}: as a count it must be at least 1", workers.count);
  } else if (!o.numa_count_or_nodes.empty()) {
    if (!workers.nodes.empty())
      return InvalidArgument("--numa-nodes: contradicts --kt-numa-nodes; give one of them");
    workers.nodes = o.numa_count_or_nodes;
  }
  int64_t node_count = static_cast<int64_t>(workers.nodes.size());
  if (node_count > 0 && workers.count > 0 && node_count != workers.count) {
    return InvalidArgument(
        "--kt-numa-nodes: names {} nodes for the {} workers of --kt-threadpool-count; give one "
        "node for each",
        node_count, workers.count);
  }
  if (node_count > 0) workers.count = node_count;
  return workers;
}

absl::Status FillComputation(const RunOptions& o, const ModelConfig& model,
                             const topology::Topology& topology, const topology::CpuBudget& budget,
                             proto::DeviceOptions* device, proto::ExpertOptions* experts) {
  KT_ASSIGN_OR_RETURN(Workers workers, AskedWorkers(o));
  const int default_threads = topology::DefaultCpuThreads(budget);
  if (workers.count == 0) {
    const int64_t threads = o.cpuinfer > 0 ? o.cpuinfer : default_threads;
    workers.count = topology::DefaultWorkers(topology, Narrow(threads));
  }
  if (o.cpuinfer > budget.allowed_pus) {
    return InvalidArgument("--kt-cpuinfer {}: this process may use {} CPUs; give 1 to {}",
                           o.cpuinfer, budget.allowed_pus, budget.allowed_pus);
  }
  if (o.cpuinfer > 0 && o.cpuinfer < workers.count) {
    return InvalidArgument(
        "--kt-cpuinfer {}: fewer than the {} expert workers; give at least one thread for each",
        o.cpuinfer, workers.count);
  }
  if (o.device_threads > budget.allowed_pus) {
    return InvalidArgument("--device-threads {}: this process may use {} CPUs; give 1 to {}",
                           o.device_threads, budget.allowed_pus, budget.allowed_pus);
  }
  // One thread per worker at least: what a machine with fewer cores than workers needs is no fault
  // of its user.
  int64_t expert_threads =
      o.cpuinfer > 0 ? o.cpuinfer : std::max<int64_t>(default_threads, workers.count);
  int64_t device_threads = o.device_threads > 0 ? o.device_threads
                           : o.cpuinfer > 0     ? o.cpuinfer
                                                : default_threads;
  const int ranks = Narrow(o.tensor_parallel_size);
  if (absl::Status s = CheckShards(model, ranks); !s.ok())
    return InvalidArgument("--tensor-parallel-size {}: {}", ranks, Message(s));
  topology::ThreadRequest request{static_cast<int>(expert_threads),
                                  static_cast<int>(workers.count),
                                  {workers.nodes.begin(), workers.nodes.end()},
                                  static_cast<int>(device_threads),
                                  ranks,
                                  budget.usable_cores};
  KT_ASSIGN_OR_RETURN(topology::ThreadPlan plan, topology::SplitThreads(request, topology));

  if (o.activation_dtype == "float32" && o.kv_cache_dtype != "auto") {
    return InvalidArgument(
        "--kv-cache-dtype {}: the cache has the type of --activation-dtype float32; leave it out",
        o.kv_cache_dtype);
  }
  device->set_kind(o.device);
  device->set_activation_dtype(o.activation_dtype);
  device->set_memory_bytes(o.device_memory_bytes);
  device->set_copy_gbps(o.device_copy_gbps);
  device->set_mem_fraction_static(o.mem_fraction_static);
  device->set_tensor_parallel_size(ranks);
  device->set_threads(Narrow(device_threads));
  device->set_deterministic(o.deterministic == "on");
  device->set_fp8_index_keys(o.fp8_index_keys);

  experts->set_method(o.kt_method);
  experts->set_cpuinfer_threads(Narrow(expert_threads));
  experts->set_usable_cores(budget.usable_cores);
  experts->set_worker_count(Narrow(workers.count));
  for (int64_t node : workers.nodes) experts->add_numa_nodes(Narrow(node));
  experts->set_transport(o.expert_transport);
  for (const std::string& warning : plan.warnings) experts->add_warnings(warning);
  return FillPlacement(o, model, experts);
}

// A conversation leaves two: behind its last answer, and at the last block boundary before.
int64_t CachedStates(const RunOptions& o, const ModelConfig& model) {
  if (!HasState(model) || o.disable_radix_cache) return 0;
  if (o.cached_states >= 0) return o.cached_states;
  return std::min(2 * o.max_running_requests, kCachedStatesDefaultMax);
}

absl::Status FillScheduler(const RunOptions& o, const ModelConfig& model, int64_t context,
                           proto::SchedulerOptions* out) {
  if (o.chunked_prefill_size == 0)
    return InvalidArgument("--chunked-prefill-size 0: must be -1 or at least 1");
  int64_t chunk = o.chunked_prefill_size < 0 ? context : o.chunked_prefill_size;
  int64_t total =
      o.max_total_tokens > 0 ? o.max_total_tokens : std::min(2 * context, kTotalTokensDefaultMax);
  out->set_chunked_prefill_size(Narrow(chunk));
  out->set_max_running_requests(Narrow(o.max_running_requests));
  out->set_max_total_tokens(Narrow(std::max<int64_t>(total, kBlockTokens)));
  out->set_max_prefill_tokens(Narrow(o.max_prefill_tokens > 0 ? o.max_prefill_tokens : chunk));
  out->set_enable_mixed_chunk(o.enable_mixed_chunk);
  out->set_prefix_cache(!o.disable_radix_cache);
  out->set_cached_states(Narrow(CachedStates(o, model)));
  out->set_max_queued_requests(Narrow(o.max_queued_requests));
  out->set_block_tokens(kBlockTokens);
  out->set_stream_interval(Narrow(o.stream_interval));
  out->set_random_seed(o.random_seed >= 0 ? static_cast<uint64_t>(o.random_seed)
                                          : std::random_device()());
  return absl::OkStatus();
}

absl::StatusOr<int> PrefillThreshold(const std::string& text) {
  constexpr int kAuto = -1;
  if (text == "auto") return kAuto;
  int rows = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rows);
  if (error != std::errc() || end != text.data() + text.size() || rows < 0) {
    return InvalidArgument("--kt-gpu-prefill-token-threshold {}: must be auto or a number of rows",
                           text);
  }
  return rows;
}

// Once experts and scheduler are filled. What cannot have an effect is off, and said so.
absl::Status FillLayerwise(const RunOptions& o, proto::SchedulerOptions* scheduler,
                           proto::ExpertOptions* experts) {
  KT_ASSIGN_OR_RETURN(int threshold, PrefillThreshold(o.gpu_prefill_token_threshold));
  const int rows_max =
      std::min(scheduler->chunked_prefill_size(), scheduler->max_prefill_tokens()) +
      (scheduler->enable_mixed_chunk() ? scheduler->max_running_requests() - 1 : 0);
  if (threshold > rows_max) {
    experts->add_warnings(fmt::format(
        "--kt-gpu-prefill-token-threshold {}: a step has {} rows at most (--chunked-prefill-size, "
        "--max-prefill-tokens), so none would be layerwise; layerwise prefill is off",
        threshold, rows_max));
    threshold = 0;
  }
  // Their intermediate rows are rounded per slice, and ranks cut other slices than workers.
  if (threshold != 0 && o.tensor_parallel_size > 1 && RoundedBits(o.kt_method) != 0) {
    experts->add_warnings(fmt::format(
        "--kt-gpu-prefill-token-threshold: with --kt-method {} and {} ranks a layerwise step would "
        "round otherwise than a hybrid one; layerwise prefill is off",
        o.kt_method, o.tensor_parallel_size));
    threshold = 0;
  }
  scheduler->set_gpu_prefill_token_threshold(threshold);
  if (!o.dynamic_expert_update) return absl::OkStatus();
  const char* missing = threshold == 0                 ? "--kt-gpu-prefill-token-threshold"
                        : experts->residents().empty() ? "--kt-num-gpu-experts"
                                                       : nullptr;
  if (missing != nullptr) {
    experts->add_warnings(fmt::format(
        "--kt-enable-dynamic-expert-update: has no effect without {}: layerwise steps change which "
        "experts are resident",
        missing));
  }
  experts->set_dynamic_update(missing == nullptr);
  return absl::OkStatus();
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

}  // namespace

absl::StatusOr<proto::RuntimeConfig> BuildRuntimeConfig(const RunOptions& options,
                                                        const ModelConfig& model,
                                                        const topology::Topology& topology,
                                                        const topology::CpuBudget& budget) {
  proto::RuntimeConfig config;
  KT_RETURN_IF_ERROR(FillModel(options, model, config.mutable_model()));
  FillServer(options, config.mutable_server());
  KT_RETURN_IF_ERROR(FillComputation(options, model, topology, budget, config.mutable_device(),
                                     config.mutable_experts()));
  KT_RETURN_IF_ERROR(
      FillScheduler(options, model, config.model().context_length(), config.mutable_scheduler()));
  KT_RETURN_IF_ERROR(FillRecorder(options, model, config.mutable_recorder()));
  KT_RETURN_IF_ERROR(FillLayerwise(options, config.mutable_scheduler(), config.mutable_experts()));
  // No sequence can be longer than the cache: requests are checked against, and by default bounded
  // by, what can be served.
  config.mutable_model()->set_context_length(
      std::min(config.model().context_length(), config.scheduler().max_total_tokens()));
  config.set_selftest(options.selftest == "on");
  config.mutable_log()->set_level(options.log_level);
  config.mutable_log()->set_format(options.log_format);
  config.mutable_log()->set_log_requests(options.log_requests);
  return config;
}

std::vector<std::string> StartWarnings(const proto::RuntimeConfig& config) {
  std::vector<std::string> warnings(config.experts().warnings().begin(),
                                    config.experts().warnings().end());
  if (!IsLoopback(config.server().host()) && config.server().api_key().empty()) {
    warnings.push_back(
        fmt::format("--host {}: others can reach the server and there is no --api-key",
                    config.server().host()));
  }
  return warnings;
}

}  // namespace kt::cli
