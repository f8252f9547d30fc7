// SPDX-License-Identifier: Apache-2.0
#include "cli/flags.h"

namespace kt::cli {
namespace {

constexpr double kIntMax = 2147483647;
constexpr double kBytesMax = 1e15;
constexpr FlagUse kWorks = FlagUse::kWorks;
constexpr FlagUse kAccepted = FlagUse::kAccepted;
constexpr FlagUse kRefused = FlagUse::kRefused;
constexpr std::monostate kNone{};

constexpr char kModel[] = "Model";
constexpr char kServer[] = "Server";
constexpr char kExperts[] = "Experts and placement";
constexpr char kDevice[] = "Device";
constexpr char kScheduler[] = "Scheduling and cache";
constexpr char kParsers[] = "Parsers";
constexpr char kLog[] = "Log and metrics";
constexpr char kCommand[] = "Command";

std::vector<Flag> MakeTable() {
  using R = RunOptions;
  return {
      {kModel, "MODEL_DIR,--model,--model-path", "DIR", &R::model, "", kWorks, "Hugging Face directory of the model"},
      {kModel, "--kt-weight-path,--weights-path", "DIR", &R::weight_path, "the model's", kWorks,
       "Directory of the CPU experts' weights; must be the model's own, other directories are not built yet"},
      {kModel, "--served-model-name", "NAME", &R::served_model_name, "name of the model's directory", kWorks, "Id in `/v1/models`"},
      {kModel, "--chat-template", "FILE", &R::chat_template, "the model's", kWorks, "Jinja template of the prompt"},
      {kModel, "--context-length", "N", &R::context_length, "from config.json", kWorks,
       "Tokens of prompt and answer together at most; never more than --max-total-tokens", 1, kIntMax},
      {kModel, "--sampling-defaults", "WHERE", &R::sampling_defaults, "model", kWorks,
       "Sampling parameters of requests that give none: `model` (generation_config.json) or `openai`", 0, 0, {}, {"model", "openai"}},
      {kModel, "--trust-remote-code", "", kNone, "off", kAccepted, "no code of a model is ever run"},
      {kModel, "--quantization", "NAME", kNone, "from config.json", kRefused, "weights are served as BF16"},
      {kModel, "--quantize,-q", "", kNone, "off", kRefused, "weights are not converted at start"},

      {kServer, "--host,-H", "HOST", &R::host, "127.0.0.1", kWorks,
       "Address of the HTTP port: IPv4, IPv6 (`::` for both) or a name; a warning is logged when it is not loopback and there is no key"},
      {kServer, "--port,-p", "N", &R::port, "30000", kWorks, "HTTP port; 0: any free one, shown in the ready line", 0, 65535},
      {kServer, "--grpc-port", "N", &R::grpc_port, "0", kWorks, "Port of the gRPC API on the same host; 0: only the Unix socket of the run", 0, 65535},
      {kServer, "--api-key", "KEY", &R::api_key, "none", kWorks, "Bearer token that requests must carry"},
      {kServer, "--admin-api-key", "KEY", kNone, "none", kAccepted, "there are no administrative endpoints to protect"},
      {kServer, "--body-bytes-max", "BYTES", &R::body_bytes_max, "33554432", kWorks, "Largest body of a request", 1024, 1073741824},
      {kServer, "--connections-max", "N", &R::connections_max, "4096", kWorks, "HTTP connections open at once", 1, 1000000},
      {kServer, "--header-timeout-ms", "MS", &R::header_timeout_ms, "10000", kWorks, "Time for a client to send the whole header", 1, kIntMax},
      {kServer, "--body-timeout-ms", "MS", &R::body_timeout_ms, "60000", kWorks, "Time for a client to send the whole body", 1, kIntMax},
      {kServer, "--drain-timeout-ms", "MS", &R::drain_timeout_ms, "10000", kWorks, "Time for running requests to finish when the server is stopped", 0,
       3600000},
      {kServer, "--stream-buffer-bytes-max", "BYTES", &R::stream_buffer_bytes_max, "8388608", kWorks,
       "Unsent bytes of a slow reader before its request is ended", 4096, 1073741824},
      {kServer, "--queue-timeout-ms", "MS", &R::queue_timeout_ms, "600000", kWorks, "A request that waits longer to be admitted gets 503", 1, kIntMax},
      {kServer, "--watchdog-timeout", "S", &R::watchdog_timeout_s, "300", kWorks, "A step that takes longer ends and restarts the GPU worker", 1, 1000000},
      {kServer, "--skip-server-warmup", "", kNone, "off", kAccepted, "there is no warm-up request to skip"},

      {kExperts, "--kt-method", "NAME", &R::kt_method, "BF16", kWorks, "Weight format of the CPU experts", 0, 0, {"BF16"}},
      {kExperts, "--kt-cpuinfer,--cpu-threads", "N", &R::cpuinfer, "90 % of the usable physical cores", kWorks,
       "Threads of all expert workers together; cores are counted inside the affinity mask and capped by the CPU quota", 1, 65536},
      {kExperts, "--kt-threadpool-count", "N", &R::threadpool_count, "number of NUMA nodes", kWorks,
       "Expert workers, one per NUMA node; more than the nodes there are: runs, with a warning", 1, 64},
      {kExperts, "--kt-numa-nodes", "N...", &R::numa_nodes, "all in turn", kWorks, "Node of each expert worker", 0, 1023},
      {kExperts, "--numa-nodes", "N...", &R::numa_count_or_nodes, "", kWorks,
       "One value: as --kt-threadpool-count; several: as --kt-numa-nodes", 0, 1023},
      {kExperts, "--kt-num-gpu-experts,--gpu-experts", "N", &R::num_gpu_experts, "0", kWorks, "Experts per layer that live on the device", 0, 65536},
      {kExperts, "--kt-gpu-experts-ratio", "X", &R::gpu_experts_ratio, "", kWorks,
       "The same as a share of all experts, rounded down; wins over the number", 0, 1},
      {kExperts, "--kt-expert-placement-strategy", "NAME", &R::placement_strategy, "uniform", kWorks, "Which experts live on the device", 0, 0,
       {"uniform"}},
      {kExperts, "--expert-transport", "NAME", &R::expert_transport, "ring", kWorks,
       "Way of the experts' inputs and outputs: `ring` (shared memory) or `grpc`", 0, 0, {}, {"ring", "grpc"}},
      {kExperts, "--kt-gpu-prefill-token-threshold,--kt-gpu-prefill-threshold", "N", kNone, "0", kRefused, "layerwise prefill; 0 is off", 0, 0, {"0"}},
      {kExperts, "--kt-enable-dynamic-expert-update", "", kNone, "off", kAccepted,
       "experts change places during layerwise prefill, which this release does not have"},
      {kExperts, "--kt-max-deferred-experts-per-token", "N", kNone, "0", kRefused, "expert deferral; 0 is off", 0, 0, {"0"}},
      {kExperts, "--record-kt-gpu-expert-distribution", "", kNone, "off", kRefused, "recording of expert statistics"},
      {kExperts, "--kt-expert-lora-path,--kt-lora-path", "PATH", kNone, "none", kRefused, "LoRA on CPU experts"},
      {kExperts, "--init-expert-location", "WHERE", kNone, "trivial", kRefused, "placement from recorded statistics; trivial is the default", 0, 0,
       {"trivial"}},
      {kExperts, "--disable-shared-experts-fusion", "", kNone, "on", kAccepted, "shared experts are never fused with routed ones"},
      {kExperts, "--enable-shared-experts-fusion", "", kNone, "off", kRefused, "fusion of shared with routed experts"},
      {kExperts, "--moe-runner-backend", "NAME", kNone, "auto", kAccepted, "the device has one implementation of the experts"},

      {kDevice, "--device", "NAME", &R::device, "host", kWorks, "Device of the dense layers: `host` is the CPU as a device", 0, 0, {"host"}},
      {kDevice, "--activation-dtype", "TYPE", &R::activation_dtype, "bf16", kWorks,
       "`bf16`, or `float32` for exact comparison with references", 0, 0, {}, {"bf16", "float32"}},
      {kDevice, "--device-memory-bytes", "BYTES", &R::device_memory_bytes, "0", kWorks, "Memory of the host device; 0: no cap", 0, kBytesMax},
      {kDevice, "--device-copy-gbps", "X", &R::device_copy_gbps, "0", kWorks, "Slows copies of the host device to so many GB/s; 0: not", 0, 1e6},
      {kDevice, "--device-threads", "N", &R::device_threads, "as --kt-cpuinfer", kWorks,
       "Compute threads of the host device, which takes turns with the expert workers", 1, 65536},
      {kDevice, "--mem-fraction-static", "X", &R::mem_fraction_static, "", kAccepted,
       "the host device allocates what it needs; its cap is --device-memory-bytes", 0.01, 1},
      {kDevice, "--tensor-parallel-size,--tp,--tp-size", "N", kNone, "1", kRefused, "more than one rank", 0, 0, {"1"}},
      {kDevice, "--kv-cache-dtype", "TYPE", &R::kv_cache_dtype, "auto", kWorks, "Type of the cache; `auto` is the activations'", 0, 0,
       {"auto", "bf16", "bfloat16"}},
      {kDevice, "--attention-backend", "NAME", kNone, "auto", kAccepted, "the host device has one attention"},
      {kDevice, "--fp8-gemm-backend,--fp8-gemm-runner-backend", "NAME", kNone, "auto", kAccepted, "nothing is computed in FP8"},
      {kDevice, "--enable-p2p-check", "", kNone, "off", kAccepted, "the host device has no peers"},
      {kDevice, "--disable-cuda-graph", "", kNone, "off", kAccepted, "the host device has no CUDA graphs"},
      {kDevice, "--cuda-graph-max-bs", "N", kNone, "auto", kAccepted, "the host device has no CUDA graphs"},
      {kDevice, "--cuda-graph-bs", "N...", kNone, "auto", kAccepted, "the host device has no CUDA graphs"},

      {kScheduler, "--chunked-prefill-size", "N", &R::chunked_prefill_size, "512", kWorks,
       "Prompt tokens of one step at most; -1: as many as the context has", -1, kIntMax},
      {kScheduler, "--max-prefill-tokens", "N", &R::max_prefill_tokens, "as --chunked-prefill-size", kWorks,
       "Prefill budget of a step; the smaller of the two holds", 1, kIntMax},
      {kScheduler, "--enable-mixed-chunk", "", &R::enable_mixed_chunk, "off", kWorks, "Decode tokens may share a step with prompt tokens"},
      {kScheduler, "--max-running-requests", "N", &R::max_running_requests, "32", kWorks, "Sequences running at once", 1, 4096},
      {kScheduler, "--max-queued-requests", "N", &R::max_queued_requests, "1024", kWorks, "Requests waiting at once; one more gets 429", 1, 1000000},
      {kScheduler, "--max-total-tokens", "N", &R::max_total_tokens, "2 contexts, 32768 at most", kWorks,
       "Tokens of all sequences in the cache; one sequence cannot be longer", 16, kIntMax},
      {kScheduler, "--stream-interval", "N", &R::stream_interval, "1", kWorks, "Tokens per event of a stream", 1, 4096},
      {kScheduler, "--random-seed", "N", &R::random_seed, "random", kWorks, "Seeds of requests that give none are drawn from it", 0, 9007199254740991},
      {kScheduler, "--schedule-policy", "NAME", kNone, "fcfs", kRefused, "other orders than first come, first served", 0, 0, {"fcfs"}},
      {kScheduler, "--page-size", "N", kNone, "16", kAccepted, "blocks of the cache have 16 tokens"},
      {kScheduler, "--disable-radix-cache", "", kNone, "off", kAccepted, "prefixes are not kept after their requests"},

      {kParsers, "--tool-call-parser", "NAME", kNone, "none", kRefused, "parsing of tool calls"},
      {kParsers, "--reasoning-parser", "NAME", kNone, "none", kRefused, "separation of reasoning"},

      {kLog, "--log-level", "LEVEL", &R::log_level, "info", kWorks, "trace, debug, info, warning or error", 0, 0, {},
       {"trace", "debug", "info", "warning", "error"}},
      {kLog, "--log-format", "FORMAT", &R::log_format, "text", kWorks, "text or json", 0, 0, {}, {"text", "json"}},
      {kLog, "--log-requests", "", &R::log_requests, "off", kWorks, "Log every request's id and counts, never its text"},
      {kLog, "--enable-metrics", "", kNone, "off", kAccepted, "`/metrics` is always served"},
      {kLog, "--decode-log-interval", "N", kNone, "40", kAccepted, "decoding is not logged; see `/metrics`"},

      {kCommand, "--print-config", "", &R::print_config, "off", kWorks, "Print the configuration as JSON and exit"},
      {kCommand, "--dry-run", "", &R::dry_run, "off", kWorks, "Check everything, print the processes that would be started and exit"},
      {kCommand, "--advanced", "", kNone, "off", kAccepted, "no questions are asked"},
  };
}

}  // namespace

const std::vector<Flag>& FlagTable() {
  static const std::vector<Flag>& table = *new std::vector<Flag>(MakeTable());
  return table;
}

}  // namespace kt::cli
