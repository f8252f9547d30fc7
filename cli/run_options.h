// SPDX-License-Identifier: Apache-2.0
#ifndef KT_CLI_RUN_OPTIONS_H_
#define KT_CLI_RUN_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace kt::cli {

// Of a flag given as `auto`: chosen by the memory plan (auto_limits.h).
inline constexpr int64_t kAutomatic = INT64_MIN;

// The values of `kt run`'s flags that work here, each within the range of its row in flags.cc. -1
// or 0, where outside that range: not given, chosen in run_config.cc.
struct RunOptions {
  std::string model;
  std::string weight_path;
  std::string served_model_name;
  std::string chat_template;
  int64_t context_length = 0;
  std::string sampling_defaults = "model";

  std::string host = "127.0.0.1";
  int64_t port = 30000;
  int64_t grpc_port = 0;
  std::string api_key;
  int64_t body_bytes_max = int64_t{32} << 20;
  int64_t connections_max = 4096;
  int64_t header_timeout_ms = 10000;
  int64_t body_timeout_ms = 60000;
  int64_t drain_timeout_ms = 10000;
  int64_t stream_buffer_bytes_max = int64_t{8} << 20;
  int64_t queue_timeout_ms = 600000;
  int64_t watchdog_timeout_s = 300;

  std::string device = "host";
  std::string activation_dtype = "bf16";
  int64_t device_memory_bytes = 0;
  double device_copy_gbps = 0;
  int64_t device_threads = 0;
  double mem_fraction_static = 0;
  int64_t tensor_parallel_size = 1;
  std::string kv_cache_dtype = "auto";

  std::string kt_method;  // empty: what the checkpoint is stored in
  int64_t cpuinfer = 0;
  int64_t threadpool_count = 0;
  std::vector<int64_t> numa_nodes;
  std::vector<int64_t> numa_count_or_nodes;  // --numa-nodes: one value is a count, several are ids
  int64_t num_gpu_experts = 0;
  double gpu_experts_ratio = -1;
  std::string placement_strategy = "uniform";
  std::string init_expert_location = "trivial";
  std::string recorder_mode = "stat";
  int64_t recorder_buffer_size = 1000;
  std::string recorder_dir;  // empty: the directory for temporary files
  std::string expert_transport = "ring";
  std::string gpu_prefill_token_threshold = "0";  // rows or "auto"
  bool dynamic_expert_update = false;

  int64_t chunked_prefill_size = 512;
  int64_t max_running_requests = 32;
  int64_t max_total_tokens = 0;
  int64_t max_prefill_tokens = 0;
  bool enable_mixed_chunk = false;
  bool disable_radix_cache = false;
  int64_t cached_states = -1;
  int64_t max_queued_requests = 1024;
  int64_t stream_interval = 1;
  int64_t random_seed = -1;

  std::string log_level = "info";
  std::string log_format = "text";
  std::string selftest = "on";
  std::string deterministic = "on";
  bool fp8_index_keys = false;
  bool log_requests = false;

  bool print_config = false;
  bool dry_run = false;

  std::vector<std::string>
      notes;  // "--trust-remote-code: without effect here: ...", to be logged at start
};

}  // namespace kt::cli

#endif  // KT_CLI_RUN_OPTIONS_H_
