// SPDX-License-Identifier: Apache-2.0
#include "common/observe/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace kt::metrics {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;

const Histogram::BucketBoundaries kFirstTokenSeconds = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                                        2.5,  5,     10,   20,  40,   80,  160};
const Histogram::BucketBoundaries kTokenSeconds = {0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
                                                   0.1,   0.15,  0.2,  0.4,  0.8,  2,    5};
const Histogram::BucketBoundaries kRequestSeconds = {0.1, 0.25, 0.5, 1,   2.5, 5,   10,
                                                     20,  40,   80,  160, 320, 640, 1280};

}  // namespace

struct Metrics::State {
  explicit State(const std::string& model_name) : labels{{"model_name", model_name}} {}

  Gauge& NewGauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Labels(labels).Register(registry).Add({});
  }
  Counter& NewCounter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Labels(labels).Register(registry).Add(
        {});
  }
  Histogram& NewHistogram(const char* name, const char* help,
                          const Histogram::BucketBoundaries& bounds) {
    return prometheus::BuildHistogram().Name(name).Help(help).Labels(labels).Register(registry).Add(
        {}, bounds);
  }
  Family<Gauge>& NewGauges(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Labels(labels).Register(registry);
  }

  prometheus::Labels labels;
  prometheus::Registry registry;

  Gauge& running = NewGauge("kt:num_running_reqs", "Requests being computed.");
  Gauge& queued = NewGauge("kt:num_queue_reqs", "Requests waiting to be admitted.");
  Gauge& live = NewGauge("kt:num_live_reqs", "API calls being answered, in whatever state.");
  Gauge& used_tokens = NewGauge("kt:num_used_tokens", "Tokens that hold a cache slot.");
  Gauge& max_total_tokens = NewGauge("kt:max_total_num_tokens", "Cache slots, in tokens.");
  Gauge& token_usage = NewGauge("kt:token_usage", "Share of the cache slots in use, 0 to 1.");
  Gauge& kv_blocks_used = NewGauge("kt:kv_blocks_used", "Cache blocks in use.");
  Gauge& kv_blocks_total = NewGauge("kt:kv_blocks_total", "Cache blocks.");
  Gauge& kv_blocks_cached =
      NewGauge("kt:kv_blocks_cached", "Cache blocks that only the prefix cache keeps.");
  Gauge& cached_states =
      NewGauge("kt:cached_states", "States of recurrent layers that the prefix cache keeps.");
  Gauge& throughput = NewGauge("kt:gen_throughput", "Generated tokens per second.");
  Gauge& cache_hit_rate =
      NewGauge("kt:cache_hit_rate",
               "Share of all prompt tokens since the start found in the prefix cache, 0 to 1.");
  Gauge& retracted =
      NewGauge("kt:num_retracted_reqs", "Preempted requests that wait to run again.");
  Gauge& degraded =
      NewGauge("kt:degraded", "1 while the runtime serves with less than it was started with.");
  Gauge& warnings =
      NewGauge("kt:warnings", "Standing warnings; GET /health?verbose=1 has their text.");
  Gauge& throttled_periods =
      NewGauge("kt:cpu_throttled_periods",
               "Periods in which the CPU quota has stopped threads since the start.");
  Gauge& expert_wait_share = NewGauge(
      "kt:expert_wait_share", "Share of step time spent waiting on expert workers, 0 to 1.");
  Counter& resident_bytes =
      NewCounter("kt:expert_bytes_read_device_total",
                 "Bytes of experts used where they are resident on the device, once a layer.");
  Counter& worker_bytes =
      NewCounter("kt:expert_bytes_read_cpu_total",
                 "Bytes of CPU workers' experts used, there or after a copy, once a layer.");
  Counter& copied_bytes = NewCounter("kt:expert_bytes_copied_total",
                                     "Bytes of experts copied to the device by layerwise steps.");
  Counter& copy_seconds =
      NewCounter("kt:expert_copy_seconds_total", "Time that copies of experts took.");
  Counter& copy_stall_seconds = NewCounter("kt:expert_copy_stall_seconds_total",
                                           "Time that the device waited for copies of experts.");
  Counter& staged_copies = NewCounter("kt:expert_staged_copies_total",
                                      "Copies of experts that went through other host memory.");
  Counter& layerwise_steps = NewCounter("kt:layerwise_steps_total", "Layerwise steps.");
  Gauge& layerwise_threshold =
      NewGauge("kt:layerwise_threshold_rows", "Rows from which on a step is layerwise.");
  Counter& residents_changed =
      NewCounter("kt:residents_changed_total", "Experts that have become resident while serving.");
  Gauge& connections = NewGauge("kt:http_connections", "Open HTTP connections.");
  Counter& requests = NewCounter("kt:num_requests_total", "API calls started.");
  Counter& aborted = NewCounter("kt:num_aborted_requests_total",
                                "API calls ended before their answer was complete.");
  Counter& disconnects =
      NewCounter("kt:client_disconnects_total",
                 "API calls ended because the client went away or read too slowly.");
  Counter& prompt_tokens =
      NewCounter("kt:prompt_tokens_total", "Prompt tokens of admitted requests.");
  Counter& cached_tokens =
      NewCounter("kt:cached_tokens_total", "Prompt tokens found in the prefix cache.");
  Counter& generation_tokens = NewCounter("kt:generation_tokens_total", "Generated tokens.");
  Counter& expert_hits =
      NewCounter("kt:expert_hits_total",
                 "Choices of experts (one per token and expert) that live on the device.");
  Counter& expert_misses = NewCounter(
      "kt:expert_misses_total", "Choices of experts that live on the CPU expert workers alone.");
  Histogram& first_token = NewHistogram("kt:time_to_first_token_seconds",
                                        "From the request to its first token.", kFirstTokenSeconds);
  Histogram& token = NewHistogram("kt:inter_token_latency_seconds",
                                  "Between two tokens of a choice.", kTokenSeconds);
  Histogram& request = NewHistogram("kt:e2e_request_latency_seconds",
                                    "From the request to its last token.", kRequestSeconds);
  Family<Gauge>& worker_up = NewGauges("kt:worker_up", "1 while the worker serves.");
  Family<Gauge>& worker_threads = NewGauges("kt:worker_threads", "Compute threads of the worker.");
  Family<Gauge>& worker_restarts =
      NewGauges("kt:worker_restarts", "Times the worker was started again.");
  Family<Gauge>& warning_text = NewGauges("kt:warning_info", "1 for each standing warning.");

  struct WorkerGauges {
    prometheus::Labels labels;
    Gauge *up, *threads, *restarts;
  };
  std::mutex mutex;
  std::map<std::string, WorkerGauges> workers;  // guarded by mutex
  std::vector<Gauge*> warning_gauges;           // guarded by mutex
};

Metrics::Metrics(const std::string& model_name) : state_(std::make_unique<State>(model_name)) {}
Metrics::~Metrics() = default;

void Metrics::RequestStarted() {
  state_->requests.Increment();
  state_->live.Increment();
}

void Metrics::RequestEnded(double seconds, bool aborted) {
  state_->live.Decrement();
  if (aborted) {
    state_->aborted.Increment();
  } else {
    state_->request.Observe(seconds);
  }
}

void Metrics::ClientDisconnected() { state_->disconnects.Increment(); }
void Metrics::ConnectionOpened() { state_->connections.Increment(); }
void Metrics::ConnectionClosed() { state_->connections.Decrement(); }
void Metrics::AddPromptTokens(int64_t tokens) {
  state_->prompt_tokens.Increment(static_cast<double>(tokens));
}
void Metrics::AddGenerationTokens(int64_t tokens) {
  state_->generation_tokens.Increment(static_cast<double>(tokens));
}
void Metrics::AddExpertChoices(uint64_t hits, uint64_t misses) {
  state_->expert_hits.Increment(static_cast<double>(hits));
  state_->expert_misses.Increment(static_cast<double>(misses));
}
void Metrics::ObserveTimeToFirstToken(double seconds) { state_->first_token.Observe(seconds); }
void Metrics::ObserveInterTokenLatency(double seconds) { state_->token.Observe(seconds); }

void Metrics::SetExperts(const ExpertFigures& f) {
  const auto raise = [](Counter& counter, auto total) {
    counter.Increment(std::max(0.0, static_cast<double>(total) - counter.Value()));
  };
  raise(state_->resident_bytes, f.resident_bytes);
  raise(state_->worker_bytes, f.worker_bytes);
  raise(state_->copied_bytes, f.copied_bytes);
  raise(state_->copy_seconds, f.copy_seconds);
  raise(state_->copy_stall_seconds, f.copy_stall_seconds);
  raise(state_->staged_copies, f.staged_copies);
  raise(state_->layerwise_steps, f.layerwise_steps);
  state_->layerwise_threshold.Set(f.layerwise_threshold);
  raise(state_->residents_changed, f.residents_changed);
}

void Metrics::SetScheduler(const SchedulerFigures& f) {
  state_->running.Set(f.running_requests);
  state_->queued.Set(f.queued_requests);
  state_->used_tokens.Set(f.used_tokens);
  state_->max_total_tokens.Set(f.max_total_tokens);
  state_->token_usage.Set(
      f.max_total_tokens > 0 ? static_cast<double>(f.used_tokens) / f.max_total_tokens : 0);
  state_->kv_blocks_used.Set(f.kv_blocks_used);
  state_->kv_blocks_total.Set(f.kv_blocks_total);
  state_->throughput.Set(f.generation_tokens_per_second);
  state_->kv_blocks_cached.Set(f.kv_blocks_cached);
  state_->cached_states.Set(f.cached_states);
  state_->cache_hit_rate.Set(f.cache_hit_rate);
  const auto cached_tokens = static_cast<double>(f.cached_tokens);
  state_->cached_tokens.Increment(cached_tokens - state_->cached_tokens.Value());
  state_->retracted.Set(f.retracted_requests);
}

void Metrics::SetWorker(const WorkerFigures& worker) {
  std::lock_guard lock(state_->mutex);
  prometheus::Labels labels = {{"worker", worker.name},
                               {"numa_node", std::to_string(worker.numa_node)}};
  auto it = state_->workers.find(worker.name);
  if (it != state_->workers.end() && it->second.labels != labels) {
    state_->worker_up.Remove(it->second.up);
    state_->worker_threads.Remove(it->second.threads);
    state_->worker_restarts.Remove(it->second.restarts);
    state_->workers.erase(it);
    it = state_->workers.end();
  }
  if (it == state_->workers.end()) {
    State::WorkerGauges gauges = {labels, &state_->worker_up.Add(labels),
                                  &state_->worker_threads.Add(labels),
                                  &state_->worker_restarts.Add(labels)};
    it = state_->workers.emplace(worker.name, gauges).first;
  }
  it->second.up->Set(worker.up ? 1 : 0);
  it->second.threads->Set(worker.threads);
  it->second.restarts->Set(static_cast<double>(worker.restarts));
}

void Metrics::SetDegraded(bool degraded) { state_->degraded.Set(degraded ? 1 : 0); }

void Metrics::SetThrottledPeriods(int64_t periods) {
  state_->throttled_periods.Set(static_cast<double>(periods));
}

void Metrics::SetWarnings(const std::vector<std::string>& warnings) {
  std::lock_guard lock(state_->mutex);
  for (Gauge* gauge : state_->warning_gauges) state_->warning_text.Remove(gauge);
  state_->warning_gauges.clear();
  for (const std::string& text : warnings) {
    Gauge* gauge = &state_->warning_text.Add({{"warning", text}});
    gauge->Set(1);
    auto& all = state_->warning_gauges;
    if (std::find(all.begin(), all.end(), gauge) == all.end())
      all.push_back(gauge);  // the same text twice is one gauge
  }
  state_->warnings.Set(static_cast<double>(warnings.size()));
}

void Metrics::SetExpertWaitShare(double share) { state_->expert_wait_share.Set(share); }

std::string Metrics::Serialize() const {
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

}  // namespace kt::metrics
