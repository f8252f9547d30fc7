// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/scheduler.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/sim/rng.h"
#include "coordinator/scheduler/step_result.h"

namespace kt {
namespace {

absl::Status CheckConfig(const SchedulerConfig& config) {
  const proto::SchedulerOptions& o = config.options;
  const auto positive = [](const char* name, int64_t value) {
    return value >= 1 ? absl::OkStatus()
                      : InvalidArgument("{}: {}, expected at least 1", name, value);
  };
  const auto limit = [](const char* name, int64_t value) {
    return value >= 1 || value == -1
               ? absl::OkStatus()
               : InvalidArgument("{}: {}, expected at least 1, or -1 for no limit", name, value);
  };
  KT_RETURN_IF_ERROR(limit("chunked_prefill_size", o.chunked_prefill_size()));
  KT_RETURN_IF_ERROR(limit("max_prefill_tokens", o.max_prefill_tokens()));
  KT_RETURN_IF_ERROR(positive("max_running_requests", o.max_running_requests()));
  KT_RETURN_IF_ERROR(positive("max_queued_requests", o.max_queued_requests()));
  KT_RETURN_IF_ERROR(positive("block_tokens", o.block_tokens()));
  if (config.state_slots != 0 && config.state_slots < 2)
    return InvalidArgument("state_slots: {}, expected 0 or at least 2", config.state_slots);
  if (o.gpu_prefill_token_threshold() < LayerwiseThreshold::kAuto)
    return InvalidArgument("gpu_prefill_token_threshold: {}, expected -1 (auto), 0 or rows",
                           o.gpu_prefill_token_threshold());
  return positive("stream_interval", o.stream_interval());
}

// Positions that are in the cache when one choice is complete: the last token is never run.
int64_t TokensMax(const GenerationRequest& request) {
  return static_cast<int64_t>(request.prompt_ids.size()) + std::max(request.max_new_tokens - 1, 0);
}

void AddTimings(const proto::StepTimings& step, proto::StepTimings* sum) {
  sum->set_total_ms(sum->total_ms() + step.total_ms());
  sum->set_attention_ms(sum->attention_ms() + step.attention_ms());
  sum->set_device_moe_ms(sum->device_moe_ms() + step.device_moe_ms());
  sum->set_expert_wait_ms(sum->expert_wait_ms() + step.expert_wait_ms());
  sum->set_head_ms(sum->head_ms() + step.head_ms());
  sum->set_expert_hand_overs(sum->expert_hand_overs() + step.expert_hand_overs());
  sum->set_copy_bytes(sum->copy_bytes() + step.copy_bytes());
  sum->set_copy_ms(sum->copy_ms() + step.copy_ms());
  sum->set_copy_stall_ms(sum->copy_stall_ms() + step.copy_stall_ms());
  sum->set_staged_copies(sum->staged_copies() + step.staged_copies());
  sum->set_resident_bytes_read(sum->resident_bytes_read() + step.resident_bytes_read());
  sum->set_worker_bytes_read(sum->worker_bytes_read() + step.worker_bytes_read());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Create(SchedulerConfig config,
                                                             const Tokenizer* tokenizer) {
  KT_RETURN_IF_ERROR(CheckConfig(config));
  return std::unique_ptr<Scheduler>(new Scheduler(std::move(config), tokenizer));
}

Scheduler::Scheduler(SchedulerConfig config, const Tokenizer* tokenizer)
    : config_(std::move(config)),
      tokenizer_(tokenizer),
      threshold_(config_.options.gpu_prefill_token_threshold()),
      placement_(config_.placement),
      pool_(0, config_.options.block_tokens()),
      states_(0),
      cache_(&pool_, nullptr) {}

absl::Status Scheduler::CheckFits(const GenerationRequest& request) const {
  const int64_t tokens = TokensMax(request);
  const int64_t pool_tokens = int64_t{pool_.blocks()} * pool_.block_tokens();
  if (tokens <= pool_tokens) return absl::OkStatus();
  return InvalidArgument(
      "request {}: prompt of {} tokens and max_new_tokens {} need {} tokens of cache and the pool "
      "has {}; shorten them or raise "
      "--max-total-tokens",
      request.id, request.prompt_ids.size(), request.max_new_tokens, tokens, pool_tokens);
}

absl::Status Scheduler::CheckAcceptable(const GenerationRequest& request) const {
  if (draining_) return Unavailable("the server is stopping and takes no more requests");
  if (!was_ready_) return Unavailable("the workers are still starting");
  if (by_id_.contains(request.id))
    return AlreadyExists("request id {}: a live request has it", request.id);
  if (request.prompt_ids.empty())
    return InvalidArgument("request {}: the prompt has no tokens", request.id);
  if (request.n < 1)
    return InvalidArgument("request {}: n is {}, expected at least 1", request.id, request.n);
  if (std::count(request.stop.begin(), request.stop.end(), "") > 0) {
    return InvalidArgument("request {}: stop has an empty string", request.id);
  }
  const proto::Capture& capture = request.capture;
  const bool prompt_alone =
      request.prompt_logprobs || capture.logits() || capture.hidden() || capture.routing();
  if (request.max_new_tokens < (prompt_alone ? 0 : 1)) {
    return InvalidArgument(
        "request {}: max_new_tokens is {}, expected at least 1 (0 only with prompt logprobs)",
        request.id, request.max_new_tokens);
  }
  KT_RETURN_IF_ERROR(CheckFits(request));
  const int queued_max = config_.options.max_queued_requests();
  if (queued_ < queued_max) return absl::OkStatus();
  return ResourceExhausted("{} requests wait and max_queued_requests is {}; try again later",
                           queued_, queued_max);
}

absl::Status Scheduler::Add(GenerationRequest spec, std::shared_ptr<GenerationSink> sink,
                            TimePoint now) {
  if (absl::Status status = CheckAcceptable(spec); !status.ok()) {
    ++stats_.requests_refused;
    return status;
  }
  const uint64_t seed = spec.sampling.seed.value_or(
      SplitMix64(config_.options.random_seed() + stats_.requests_accepted));
  const uint64_t key = next_sequence_id_;
  next_sequence_id_ += spec.n;
  auto owned = std::make_unique<Request>(std::move(spec), std::move(sink), key, seed, tokenizer_,
                                         config_.eos_token_ids, config_.options.stream_interval());
  Request& request = *owned;
  requests_.emplace(key, std::move(owned));
  by_id_.emplace(request.spec.id, &request);
  for (Sequence& sequence : request.choices) waiting_.emplace(sequence.id, &sequence);
  SetDeadline(request, now + config_.queue_timeout);
  ++queued_;
  ++stats_.requests_accepted;
  return absl::OkStatus();
}

void Scheduler::Cancel(const std::string& request_id) {
  const auto it = by_id_.find(request_id);
  if (it != by_id_.end()) EndRequest(*it->second, Cancelled("request {}: cancelled", request_id));
}

void Scheduler::OnTimer(TimePoint now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Request& request = *requests_.at(deadlines_.begin()->second);
    EndRequest(request, Unavailable("request {}: waited {:.3f} s to be run{}; try again later",
                                    request.spec.id,
                                    std::chrono::duration<double>(config_.queue_timeout).count(),
                                    ready_ ? "" : " while workers are missing"));
  }
}

std::optional<TimePoint> Scheduler::NextTimer() const {
  std::optional<TimePoint> next = retry_at_;
  if (!deadlines_.empty())
    next = std::min(next.value_or(TimePoint::max()), deadlines_.begin()->first);
  return next;
}

void Scheduler::FailAll(const absl::Status& error) {
  while (!by_id_.empty()) EndRequest(*by_id_.begin()->second, error);
}

void Scheduler::OnWorkersReady(int kv_blocks, int step_tokens_max, TimePoint now) {
  OnWorkersLost("the workers were replaced", now);
  pool_ = BlockPool(kv_blocks, config_.options.block_tokens());
  states_ = StatePool(config_.state_slots);
  cache_ = PrefixCache(&pool_, has_state() ? &states_ : nullptr);
  step_tokens_max_ = step_tokens_max;
  placement_.OnAttached();
  ready_ = was_ready_ = true;
  std::vector<Request*> too_large;
  for (const auto& [key, request] : requests_) {
    if (!CheckFits(request->spec).ok()) too_large.push_back(request.get());
  }
  for (Request* request : too_large) EndRequest(*request, CheckFits(request->spec));
}

void Scheduler::OnWorkersLost(std::string_view reason, TimePoint now) {
  ready_ = false;
  retry_at_.reset();
  if (flight_) LoseStep(Unavailable("{}", reason));
  RequeueAll();
  FlushCache();
  for (const auto& [key, request] : requests_) {
    if (!request->deadline) SetDeadline(*request, now + config_.queue_timeout);
  }
}

void Scheduler::OnStepResult(const proto::StepResult& result, TimePoint now) {
  if (!flight_ || result.step_id() != flight_->step_id) return;
  std::vector<const proto::SequenceResult*> answers;
  absl::Status status = result.error().empty() ? absl::OkStatus() : Internal("{}", result.error());
  if (status.ok()) {
    std::vector<ExpectedAnswer> expected;
    for (const Planned& p : flight_->planned)
      expected.push_back({p.sequence->id, p.samples, p.logprobs, p.targets});
    status = MatchAnswers(expected, result, &answers);
  }
  if (status.ok()) status = placement_.OnResult(result);
  if (!status.ok()) {
    LoseStep(status);
    RequeueAll();
    retry_at_ = now + config_.step_retry_delay;
    return;
  }
  const Flight flight = *std::move(flight_);
  flight_.reset();
  ++stats_.steps;
  stats_.step_seconds += std::chrono::duration<double>(now - flight.sent).count();
  AddTimings(result.timings(), &stats_.timings);
  const bool layerwise = flight.layerwise && result.mode() != proto::STEP_MODE_HYBRID;
  stats_.steps_layerwise += layerwise;
  threshold_.Learn(layerwise, flight.rows,
                   result.timings().device_moe_ms() + result.timings().expert_wait_ms());
  for (size_t i = 0; i < flight.planned.size(); ++i) Apply(flight.planned[i], *answers[i]);
}

void Scheduler::Apply(const Planned& planned, const proto::SequenceResult& result) {
  Sequence& sequence = *planned.sequence;
  Request& request = *sequence.request;
  const bool ended = request.sink == nullptr;
  Land(sequence);
  if (ended) return;
  if (!result.error().empty()) {
    return EndRequest(request, Internal("request {}, choice {}: {}", request.spec.id,
                                        sequence.choice, result.error()));
  }
  const int new_from = std::max(planned.begin, sequence.frontier);
  if (planned.begin < std::max(sequence.prompt_size(), sequence.frontier)) {
    stats_.tokens_prefilled += planned.end - planned.begin;
    stats_.tokens_recomputed += std::min(new_from, planned.end) - planned.begin;
  }
  for (int i = new_from - planned.begin;
       i < planned.targets && planned.begin + i + 1 < sequence.prompt_size(); ++i) {
    sequence.output.AddPromptLogprob(FromProto(result.targets(i)));
  }
  if (request.captures && planned.begin >= sequence.captured) {
    sequence.output.AddCapture(std::make_shared<proto::CaptureResult>(result.capture()));
    sequence.captured = planned.end;
  }
  sequence.computed = planned.end;
  if (has_state()) AdvanceState(sequence);
  if (caches()) CacheComputed(sequence);
  if (planned.end > sequence.frontier) {
    sequence.frontier = planned.end;
    request.lost_steps = 0;
  }
  if (planned.samples) {
    ++stats_.tokens_generated;
    sequence.Push(result.token_id(), planned.logprobs
                                         ? std::make_optional(FromProto(result.logprob()))
                                         : std::nullopt);
    Send(sequence);
    if (sequence.output.finished()) FinishSequence(sequence);
  } else if (request.spec.max_new_tokens == 0 && sequence.computed == sequence.size()) {
    for (Sequence& choice : request.choices) {
      choice.output.FinishEmpty();
      Send(choice);
    }
    EndRequest(request, absl::OkStatus());
  }
}

// What the step has written takes the place of what it read.
void Scheduler::AdvanceState(Sequence& sequence) {
  Request& request = *sequence.request;
  states_.Release(&sequence.state);
  sequence.state = std::exchange(sequence.state_target, 0);
  if (sequence.computed != ForkPosition(sequence) || !AwaitsPromptState(request) || StateRoom() < 1)
    return;
  request.prompt_state = states_.Share(sequence.state);
  ++prompt_states_;
}

void Scheduler::ReleaseCache(Sequence& sequence) {
  if (caches()) CacheTail(sequence);
  pool_.Release(&sequence.table);
  states_.Release(&sequence.state);
  states_.Release(&sequence.state_target);
}

void Scheduler::Send(Sequence& sequence) {
  auto event = sequence.output.TakeEvent();
  if (!event) return;
  event->cached_tokens = sequence.request->cached_tokens;
  sequence.request->sink->OnEvent(*std::move(event));
}

// The sequence is no longer part of a step in flight; lets go what its request's end left to it.
void Scheduler::Land(Sequence& sequence) {
  Request& request = *sequence.request;
  sequence.in_flight = false;
  --request.in_flight;
  if (request.sink != nullptr) return;
  ReleaseCache(sequence);
  if (request.in_flight == 0) requests_.erase(request.choices[0].id);
}

void Scheduler::LoseStep(const absl::Status& why) {
  const Flight flight = *std::move(flight_);
  flight_.reset();
  ++stats_.steps_lost;
  std::map<uint64_t, Request*> requests;
  for (const Planned& p : flight.planned) {
    Request& request = *p.sequence->request;
    if (request.sink != nullptr) requests.emplace(request.choices[0].id, &request);
    Land(*p.sequence);
  }
  for (const auto& [key, request] : requests) {
    if (++request->lost_steps < config_.lost_steps_max) continue;
    EndRequest(
        *request,
        absl::Status(why.code(),
                     fmt::format("request {}: given up after {} lost steps in a row; the last: {}",
                                 request->spec.id, request->lost_steps, Message(why))));
  }
}

void Scheduler::FinishSequence(Sequence& sequence) {
  Request& request = *sequence.request;
  if (--request.choices_left == 0) return EndRequest(request, absl::OkStatus());
  running_.erase(sequence.id);
  if (Donor(sequence) == nullptr) {
    // Nobody else holds the prompt: the next choice takes it over together with the place.
    for (Sequence& heir : request.choices) {
      if (heir.output.finished()) continue;
      Start(heir, CanFork(request) ? &sequence : nullptr, {});
      break;
    }
  }
  ReleaseCache(sequence);
}

void Scheduler::SetDeadline(Request& request, std::optional<TimePoint> deadline) {
  const uint64_t key = request.choices[0].id;
  if (request.deadline) deadlines_.erase({*request.deadline, key});
  request.deadline = deadline;
  if (deadline) deadlines_.emplace(*deadline, key);
}

// Tells the client unless the request finished or was cancelled, and forgets the request but for
// what a step in flight still uses.
void Scheduler::EndRequest(Request& request, const absl::Status& status) {
  if (status.ok()) {
    ++stats_.requests_finished;
  } else if (absl::IsCancelled(status)) {
    ++stats_.requests_cancelled;
  } else {
    ++stats_.requests_failed;
    GenerationEvent event;
    event.error = status;
    request.sink->OnEvent(std::move(event));
  }
  request.sink.reset();
  by_id_.erase(request.spec.id);
  SetDeadline(request, std::nullopt);
  queued_ -= request.queued;
  for (Sequence& sequence : request.choices) {
    running_.erase(sequence.id);
    waiting_.erase(sequence.id);
    if (!sequence.in_flight) ReleaseCache(sequence);
  }
  DropPromptState(request);
  if (request.in_flight == 0) requests_.erase(request.choices[0].id);
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  stats.requests_live = static_cast<int>(requests_.size());
  stats.requests_queued = queued_;
  stats.sequences_running = static_cast<int>(running_.size());
  stats.sequences_waiting = static_cast<int>(waiting_.size());
  stats.blocks_total = pool_.blocks();
  stats.blocks_used = pool_.used_blocks();
  stats.blocks_cached = pool_.idle_blocks();
  stats.states_cached = cache_.states_kept();
  stats.block_tokens = pool_.block_tokens();
  stats.residents_changed = placement_.changes();
  stats.layerwise_threshold = threshold_.threshold();
  stats.layerwise_evidence = threshold_.Evidence();
  return stats;
}

absl::Status Scheduler::Audit() const {
  std::vector<const BlockTable*> tables;
  std::vector<int32_t> slots;
  for (const auto& [key, request] : requests_) {
    slots.push_back(request->prompt_state);
    for (const Sequence& sequence : request->choices) {
      tables.push_back(&sequence.table);
      slots.insert(slots.end(), {sequence.state, sequence.state_target});
    }
  }
  KT_RETURN_IF_ERROR(pool_.Audit(tables));
  KT_RETURN_IF_ERROR(cache_.Audit());
  cache_.AppendStates(&slots);
  return states_.Audit(slots);
}

}  // namespace kt
