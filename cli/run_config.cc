// SPDX-License-Identifier: Apache-2.0
#include "cli/run_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <system_error>

#include "common/base/status.h"
#include "common/weights/tensor_shard.h"

namespace kt::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kBlockTokens = 16;
constexpr int64_t kTotalTokensDefaultMax = 32768;

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

absl::StatusOr<int> GpuExperts(const RunOptions& o, const ModelConfig& model) {
  int experts = 0;
  for (const MoeConfig& moe : model.moes) experts = std::max(experts, moe.num_experts);
  if (o.gpu_experts_ratio >= 0) return static_cast<int>(std::floor(o.gpu_experts_ratio * experts));
  if (o.num_gpu_experts > experts) {
    return InvalidArgument(
        "--kt-num-gpu-experts {}: a layer of the model has {} experts; give at most that",
        o.num_gpu_experts, experts);
  }
  return static_cast<int>(o.num_gpu_experts);
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
  KT_ASSIGN_OR_RETURN(int gpu_experts, GpuExperts(o, model));
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
  experts->set_gpu_experts_per_layer(gpu_experts);
  experts->set_placement_strategy(o.placement_strategy);
  experts->set_transport(o.expert_transport);
  for (const std::string& warning : plan.warnings) experts->add_warnings(warning);
  return absl::OkStatus();
}

absl::Status FillScheduler(const RunOptions& o, int64_t context, proto::SchedulerOptions* out) {
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
  out->set_max_queued_requests(Narrow(o.max_queued_requests));
  out->set_block_tokens(kBlockTokens);
  out->set_stream_interval(Narrow(o.stream_interval));
  out->set_random_seed(o.random_seed >= 0 ? static_cast<uint64_t>(o.random_seed)
                                          : std::random_device()());
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
      FillScheduler(options, config.model().context_length(), config.mutable_scheduler()));
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
