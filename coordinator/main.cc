// SPDX-License-Identifier: Apache-2.0
// kt-coordinator: front ends, tokenizer, scheduler and worker registry of one system. Wires them
// top to bottom, serves until SIGTERM, then finishes what runs and leaves.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "common/base/exit_code.h"
#include "common/base/status.h"
#include "common/ipc/node_client.h"
#include "common/model/model_config.h"
#include "common/observe/log.h"
#include "common/observe/metrics.h"
#include "common/placement/placement.h"
#include "common/rpc/handshake.h"
#include "common/rpc/runtime_config.h"
#include "common/rpc/server_runner.h"
#include "common/topology/throttle_watch.h"
#include "coordinator/api/generation_service.h"
#include "coordinator/api/openai_service.h"
#include "coordinator/diagnostics/diagnostics_service.h"
#include "coordinator/grpc_api/grpc_server.h"
#include "coordinator/http/http_server.h"
#include "coordinator/http/router.h"
#include "coordinator/placement/expert_stats.h"
#include "coordinator/request_log.h"
#include "coordinator/runtime_state.h"
#include "coordinator/template/chat_template.h"
#include "coordinator/template/make_renderer.h"
#include "coordinator/tokenizer/stop_tokens.h"
#include "coordinator/workers/worker_links.h"
#include "spdlog/spdlog.h"
#include "worker/step_limits.h"

namespace kt {
namespace {

constexpr auto kFiguresPeriod = std::chrono::seconds(1);

// Stands in where the model has no template: chats are refused, the rest works.
class NoTemplate final : public PromptRenderer {
 public:
  explicit NoTemplate(absl::Status why) : why_(std::move(why)) {}
  absl::StatusOr<std::string> Render(const Json&) override { return why_; }

 private:
  const absl::Status why_;
};

absl::StatusOr<std::unique_ptr<PromptRenderer>> MakeRenderer(const proto::ModelOptions& model,
                                                             const std::string& model_type) {
  auto renderer = MakePromptRenderer(model.path(), model.chat_template_path(), model_type);
  if (!absl::IsFailedPrecondition(renderer.status())) return renderer;
  spdlog::warn("{}; /v1/chat/completions is refused, /v1/completions works",
               Message(renderer.status()));
  return std::make_unique<NoTemplate>(renderer.status());
}

// A generation ends at each of them.
absl::StatusOr<std::vector<int32_t>> MakeStopTokens(const std::string& model_dir,
                                                    const ModelConfig& model,
                                                    const Tokenizer& tokenizer) {
  KT_ASSIGN_OR_RETURN(SpecialTokens special, LoadSpecialTokens(model_dir));
  std::vector<int32_t> ids =
      StopTokenIds(model.eos_token_ids, tokenizer, special.eos_token, model.vocab);
  if (ids.empty()) {
    spdlog::warn(
        "no end token is known (eos_token_id of config.json and generation_config.json, eos_token "
        "of tokenizer_config.json): answers end at their limit or a stop string only");
  }
  return ids;
}

absl::StatusOr<api::ApiDefaults> MakeDefaults(const proto::ModelOptions& model) {
  api::ApiDefaults out;
  if (model.sampling_defaults() != "model") return out;
  KT_ASSIGN_OR_RETURN(GenerationDefaults d, LoadGenerationDefaults(model.path()));
  auto narrow = [](const std::optional<double>& x) {
    return x ? std::optional<float>(static_cast<float>(*x)) : std::nullopt;
  };
  out.temperature = narrow(d.temperature);
  out.top_p = narrow(d.top_p);
  out.min_p = narrow(d.min_p);
  out.repetition_penalty = narrow(d.repetition_penalty);
  out.top_k = d.top_k;
  return out;
}

// An inherited descriptor named by an environment variable; -1: not given.
int InheritedFd(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : -1;
}

void TellNodeReady() {
  int fd = InheritedFd("KT_READY_FD");
  if (fd < 0) return;
  if (write(fd, "READY\n", 6) != 6)
    spdlog::warn("the node could not be told that the server is ready");
  close(fd);
}

// Segments that an earlier coordinator of this system left at the node.
void DropSegments(NodeClient& node) {
  absl::StatusOr<std::string> text = node.SegmentsJson();
  if (!text.ok()) return;
  absl::StatusOr<Json> json = ParseJson(*text);
  if (!json.ok() || !json->contains("segments")) return;
  for (const Json& segment : (*json)["segments"]) {
    const std::string name = segment.value("name", "");
    if (name.starts_with("expert-ring-") || name.starts_with("collective-"))
      node.DropSegment(name).IgnoreError();
  }
}

// Between two looks at the figures.
struct LastFigures {
  SchedulerStats scheduler;
  ExpertUse experts;
  std::vector<std::string> warnings;
  int layerwise_threshold = -1;
  topology::ThrottleWatch throttle{topology::ReadCpuQuota()};
};

// The evidence for a threshold that has moved by more than noise does.
void LogThreshold(const SchedulerStats& now, int& last) {
  constexpr double kWorthTelling = 1.25;
  if (now.layerwise_evidence.empty()) return;
  const double ratio = static_cast<double>(now.layerwise_threshold) / last;
  if (last > 0 && ratio < kWorthTelling && ratio > 1 / kWorthTelling) return;
  last = now.layerwise_threshold;
  spdlog::info("{}", now.layerwise_evidence);
}

void SetFigures(const SchedulerLoop& loop, const WorkerLinks& links, const ExpertStats& experts,
                RuntimeState& state, metrics::Metrics& metrics, LastFigures& figures) {
  SchedulerStats& last = figures.scheduler;
  SchedulerStats now = loop.stats();
  double seconds = std::chrono::duration<double>(kFiguresPeriod).count();
  metrics.SetScheduler(
      {.running_requests = now.sequences_running,
       .queued_requests = now.requests_queued,
       .used_tokens = now.blocks_used * now.block_tokens,
       .max_total_tokens = now.blocks_total * now.block_tokens,
       .kv_blocks_used = now.blocks_used,
       .kv_blocks_total = now.blocks_total,
       .kv_blocks_cached = now.blocks_cached,
       .cached_states = now.states_cached,
       .generation_tokens_per_second =
           static_cast<double>(now.tokens_generated - last.tokens_generated) / seconds,
       .cache_hit_rate = CacheHitRate(now),
       .cached_tokens = now.tokens_cached,
       .retracted_requests = now.sequences_waiting - now.requests_queued});
  double total_ms = now.timings.total_ms() - last.timings.total_ms();
  double wait_ms = now.timings.expert_wait_ms() - last.timings.expert_wait_ms();
  metrics.SetExpertWaitShare(total_ms > 0 ? wait_ms / total_ms : 0);
  const ExpertUse use = experts.use();
  metrics.AddExpertChoices(use.hits - figures.experts.hits, use.misses - figures.experts.misses);
  figures.experts = use;
  const proto::StepTimings& t = now.timings;
  metrics.SetExperts({.resident_bytes = t.resident_bytes_read(),
                      .worker_bytes = t.worker_bytes_read(),
                      .copied_bytes = t.copy_bytes(),
                      .copy_seconds = t.copy_ms() / 1000,
                      .copy_stall_seconds = t.copy_stall_ms() / 1000,
                      .staged_copies = t.staged_copies(),
                      .layerwise_steps = now.steps_layerwise,
                      .layerwise_threshold = now.layerwise_threshold,
                      .residents_changed = now.residents_changed});
  LogThreshold(now, figures.layerwise_threshold);
  metrics.SetDegraded(!links.serving());
  for (const Json& w : links.Health()["workers"]) {
    metrics.SetWorker({.name = w["name"],
                       .numa_node = w["numa_node"],
                       .threads = w["threads"],
                       .up = w["state"] == "ready",
                       .restarts = w["losses"].get<uint64_t>()});
  }
  last = now;

  if (std::vector<std::string> warnings = state.Warnings(); warnings != figures.warnings) {
    metrics.SetWarnings(warnings);
    figures.warnings = std::move(warnings);
  }
  const std::string throttled = figures.throttle.Sample(std::chrono::steady_clock::now());
  if (!throttled.empty()) spdlog::warn("{}", throttled);
  state.SetThrottledPeriods(figures.throttle.periods());
  metrics.SetThrottledPeriods(figures.throttle.periods());
}

absl::Status Serve(const proto::RuntimeConfig& config, const sigset_t& stop_signals) {
  const proto::ServerOptions& server = config.server();
  const std::string& runtime_dir = config.runtime_dir();
  KT_ASSIGN_OR_RETURN(ModelConfig model, LoadModelConfig(config.model().path()));
  KT_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(config.model().path()));
  KT_ASSIGN_OR_RETURN(std::unique_ptr<PromptRenderer> renderer,
                      MakeRenderer(config.model(), model.model_type));
  KT_ASSIGN_OR_RETURN(model.eos_token_ids,
                      MakeStopTokens(config.model().path(), model, *tokenizer));
  KT_ASSIGN_OR_RETURN(api::ApiDefaults defaults, MakeDefaults(config.model()));

  metrics::Metrics metrics(config.model().served_model_name());

  // From here on used by the links' thread alone.
  KT_ASSIGN_OR_RETURN(NodeClient node, NodeClient::Connect(runtime_dir + "/node.sock"));
  DropSegments(node);
  auto warn = [](const absl::Status& s) {
    if (!s.ok()) spdlog::warn("{}", Message(s));
  };
  std::once_flag told;
  WorkerLinks links(
      config,
      RegistryConfig{.gpu_workers = config.device().tensor_parallel_size(),
                     .expert_workers = config.experts().worker_count(),
                     .versions = {kProtocolVersion, BuildId(), kPackedLayoutVersion},
                     .first_generation = NewIncarnation()},
      {.on_serving = [&] { std::call_once(told, TellNodeReady); },
       .drop_segment = [&](const std::string& segment) { warn(node.DropSegment(segment)); },
       .kill = [&](const std::string& process) { warn(node.KillProcess(process)); }});
  KT_ASSIGN_OR_RETURN(const Placement initial, InitialPlacement(config.experts(), model));
  KT_ASSIGN_OR_RETURN(
      std::unique_ptr<Scheduler> scheduler,
      Scheduler::Create(
          {.options = config.scheduler(),
           .queue_timeout = std::chrono::milliseconds(server.queue_timeout_ms()),
           .placement =
               config.experts().dynamic_update() ? LivePlacement(model, initial) : LivePlacement(),
           .eos_token_ids = model.eos_token_ids,
           .state_slots = HasState(model) ? StateSlots(config.scheduler()) : 0},
          tokenizer.get()));
  SteadyClock clock;
  ExpertStats experts(model, initial, config.recorder());
  SchedulerLoop loop(std::move(scheduler), &links, &clock,
                     [&experts](const proto::StepResult& result) { experts.OnStep(result); });
  RequestLog request_log(&loop);
  Generator* const generator =
      config.log().log_requests() ? static_cast<Generator*>(&request_log) : &loop;
  RuntimeState state(config, model, &links, &loop, &experts);
  api::GenerationService service({.name = config.model().served_model_name(),
                                  .context_length = config.model().context_length(),
                                  .vocab_size = model.vocab,
                                  .created = time(nullptr)},
                                 defaults, tokenizer.get(), renderer.get(), generator, &state,
                                 &metrics, {});
  api::OpenAiService openai(&service, &experts);
  http::Router router(&openai, server.api_key());
  DiagnosticsService diagnostics(
      &loop, {.vocab = model.vocab, .context_length = config.model().context_length()},
      [&links](const proto::SelfCheckRequest& request) { return links.SelfCheck(request); },
      [&links](const proto::TimelineRequest& request, const std::function<bool()>& cancelled) {
        return links.RecordTimelines(request, cancelled);
      });

  KT_ASSIGN_OR_RETURN(
      std::unique_ptr<http::HttpServer> http,
      http::HttpServer::Start({.listen_fd = InheritedFd("KT_HTTP_FD"),
                               .host = server.host(),
                               .port = server.port(),
                               .connections_max = server.connections_max(),
                               .body_bytes_max = server.body_bytes_max(),
                               .stream_buffer_bytes_max = server.stream_buffer_bytes_max(),
                               .header_timeout_ms = server.header_timeout_ms(),
                               .body_timeout_ms = server.body_timeout_ms()},
                              &router, &metrics));
  grpc_api::GrpcServerOptions grpc_options{
      .addresses = {fmt::format("unix:{}/api.sock", runtime_dir)},
      .api_key = server.api_key(),
      .message_bytes_max = static_cast<int>(server.body_bytes_max()),
      .stream_buffer_bytes_max = server.stream_buffer_bytes_max()};
  if (server.grpc_port() != 0)
    grpc_options.addresses.push_back(fmt::format("{}:{}", server.host(), server.grpc_port()));
  KT_ASSIGN_OR_RETURN(std::unique_ptr<grpc_api::GrpcServer> grpc,
                      grpc_api::GrpcServer::Start(grpc_options, &service));

  links.Start(&loop);
  KT_ASSIGN_OR_RETURN(std::unique_ptr<ServerRunner> internal,
                      ServerRunner::Start(fmt::format("unix:{}/coordinator.sock", runtime_dir),
                                          {&links, &diagnostics}));

  LastFigures last;
  const timespec period{.tv_sec = std::chrono::seconds(kFiguresPeriod).count(), .tv_nsec = 0};
  while (sigtimedwait(&stop_signals, nullptr, &period) < 0)
    SetFigures(loop, links, experts, state, metrics, last);

  spdlog::info("stopping: requests that run may finish for {} ms", server.drain_timeout_ms());
  state.StartDraining();
  loop.Drain();
  auto limit = std::chrono::milliseconds(server.drain_timeout_ms());
  loop.WaitIdle(limit);
  http->Drain(std::chrono::milliseconds(1000));
  grpc->Drain(std::chrono::milliseconds(1000));
  links.Stop();
  internal.reset();
  http.reset();
  grpc.reset();
  return absl::OkStatus();
}

}  // namespace
}  // namespace kt

int main(int argc, char** argv) {
  CLI::App app("kt-coordinator");
  std::string config_path;
  app.add_option("--config", config_path, "configuration of the running system")->required();
  CLI11_PARSE(app, argc, argv);
  auto config = kt::ReadRuntimeConfig(config_path);
  if (!config.ok()) return kt::FailProcess(config.status());
  if (absl::Status s =
          kt::SetUpLog("kt-coordinator", config->log().level(), config->log().format());
      !s.ok())
    return kt::FailProcess(s);
  // Blocked in every thread; the main loop waits for them.
  sigset_t stop_signals;
  sigemptyset(&stop_signals);
  sigaddset(&stop_signals, SIGTERM);
  sigaddset(&stop_signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop_signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  absl::Status status = kt::Serve(*config, stop_signals);
  return status.ok() ? kt::kExitOk : kt::FailProcess(status);
}
