// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/engine.h"

#include <algorithm>
#include <cmath>

#include "common/base/status.h"
#include "common/observe/timeline.h"
#include "common/weights/tensor_shard.h"
#include "spdlog/spdlog.h"

namespace kt {
namespace {

constexpr int kHeadRows = 32;  // rows of logits at a time

// A row of the step whose final norm and logits are wanted.
struct HeadRow {
  int row;  // in the step
  int sequence;
  int offset;  // of the row in its sequence
};

// The arrays that SamplingArgs points into.
struct SamplingArrays {
  std::vector<SamplingTokenCount> counts;
  std::vector<SamplingBias> biases;
};

SamplingArgs ArgsOf(const proto::Sampling& s, int vocab, SamplingArrays& arrays) {
  for (const proto::TokenCount& c : s.counts())
    arrays.counts.push_back({c.token_id(), c.in_output(), c.in_prompt()});
  for (const proto::LogitBias& b : s.logit_bias())
    arrays.biases.push_back({b.token_id(), b.bias()});
  return {
      .vocab = vocab,
      .temperature = s.temperature(),
      .top_k = s.top_k(),
      .top_p = s.top_p(),
      .min_p = s.min_p(),
      .presence_penalty = s.presence_penalty(),
      .frequency_penalty = s.frequency_penalty(),
      .repetition_penalty = s.repetition_penalty(),
      .counts = arrays.counts,
      .biases = arrays.biases,
      .suppressed_ids = {s.suppressed_ids().data(), static_cast<size_t>(s.suppressed_ids_size())},
      .seed = s.seed(),
      .choice = s.choice(),
      .position = s.position()};
}

const char* Explain(SampleStatus status) {
  switch (status) {
    case SampleStatus::kOk:
      return "";
    case SampleStatus::kNotFinite:
      return "the logits are not finite (NaN or infinity)";
    case SampleStatus::kNoCandidate:
      return "every token is suppressed";
    case SampleStatus::kBadToken:
      return "a token id of penalties, bias or suppression is outside the vocabulary";
  }
  return "unknown";
}

proto::TokenLogprob LogprobOf(const SampleJob& job, int32_t token) {
  proto::TokenLogprob out;
  out.set_token_id(token);
  out.set_logprob(job.logprob);
  for (const ScoredToken& t : job.top) {
    out.add_top_ids(t.token_id);
    out.add_top_logprobs(t.logprob);
  }
  return out;
}

// The plan has passed CheckHeat.
std::vector<std::vector<double>> HeatOf(const proto::StepPlan& plan, const ModelConfig& config) {
  std::vector<std::vector<double>> heat(config.layers.size());
  for (const proto::LayerHeat& layer : plan.heat())
    heat[static_cast<size_t>(layer.layer())].assign(layer.experts().begin(), layer.experts().end());
  return heat;
}

// Every MoE layer has a number for each of its experts, or there are none at all.
absl::Status CheckHeat(const proto::StepPlan& plan, const ModelConfig& config) {
  if (plan.heat_size() == 0) return absl::OkStatus();
  int next = 0;
  for (size_t l = 0; l < config.layers.size(); ++l) {
    if (!config.layers[l].moe) continue;
    const int experts = config.moes[static_cast<size_t>(*config.layers[l].moe)].num_experts;
    if (next == plan.heat_size() || plan.heat(next).layer() != static_cast<int>(l) ||
        plan.heat(next).experts_size() != experts)
      return InvalidArgument("step: heat: layer {} has {} experts, and not as many numbers", l,
                             experts);
    for (float heat : plan.heat(next).experts()) {
      if (!std::isfinite(heat) || heat < 0)
        return InvalidArgument("step: heat: layer {}: {} is no number of choices", l, heat);
    }
    ++next;
  }
  if (next != plan.heat_size())
    return InvalidArgument("step: heat: {} layers, the model has {} with experts", plan.heat_size(),
                           next);
  return absl::OkStatus();
}

// What a step that is run again would add to.
void ClearCaptures(proto::StepResult& result) {
  for (proto::SequenceResult& r : *result.mutable_sequences()) {
    if (!r.has_capture()) continue;
    r.mutable_capture()->clear_routing();
    r.mutable_capture()->clear_selections();
  }
}

std::vector<HeadRow> RowsOf(const proto::StepPlan& plan) {
  std::vector<HeadRow> rows;
  int row = 0;
  for (int i = 0; i < plan.sequences_size(); ++i) {
    const proto::SequenceStep& s = plan.sequences(i);
    bool all = s.capture().logits() || s.capture().hidden();
    for (int t = 0; t < s.token_ids_size(); ++t, ++row) {
      bool sampled = s.has_sampling() && t == s.token_ids_size() - 1;
      bool target = s.target_ids_size() != 0 && s.target_ids(t) >= 0;
      if (all || sampled || target) rows.push_back({row, i, t});
    }
  }
  return rows;
}

// Ranks of different steps must not exchange values.
absl::Status CheckSameStep(const proto::StepPlan& plan, Collective& group) {
  const uint64_t own[] = {plan.step_id(), plan.placement_version()};
  uint64_t first[] = {own[0], own[1]};
  KT_RETURN_IF_ERROR(group.Broadcast(first, sizeof(first), 0));
  if (std::equal(own, own + 2, first)) return absl::OkStatus();
  return FailedPrecondition("rank {} runs step {} at placement {}, rank 0 step {} at {}",
                            group.rank(), own[0], own[1], first[0], first[1]);
}

}  // namespace

size_t Engine::WorkspaceBytes(const ModelConfig& c, int ranks, int activation_bytes) {
  const size_t copies = ranks > 1 ? 3 : 1;  // of the logits
  return static_cast<size_t>(kHeadRows) *
             (2 * static_cast<size_t>(c.hidden) * static_cast<size_t>(activation_bytes) +
              copies * static_cast<size_t>(c.vocab) * 4) +
         3 * 256;
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const Parts& parts) {
  std::unique_ptr<Engine> engine(new Engine(parts));
  Engine& e = *engine;
  KT_ASSIGN_OR_RETURN(e.input_, StepInput::Allocate(parts.limits, *parts.device));
  int ab = parts.ops->activation_bytes();
  KT_ASSIGN_OR_RETURN(
      e.memory_,
      parts.device->Allocate(WorkspaceBytes(*parts.config, parts.ranks, ab), "logits workspace"));
  size_t row_bytes = (static_cast<size_t>(kHeadRows) * static_cast<size_t>(parts.config->hidden) *
                          static_cast<size_t>(ab) +
                      255) /
                     256 * 256;
  e.picked_ = e.memory_.As<uint8_t>();
  e.normed_ = e.memory_.As<uint8_t>() + row_bytes;
  e.logits_ = reinterpret_cast<float*>(e.memory_.As<uint8_t>() + 2 * row_bytes);
  if (parts.ranks > 1) {
    e.own_logits_ = e.logits_ + int64_t{kHeadRows} * parts.config->vocab;
    e.rank_logits_ = e.own_logits_ + int64_t{kHeadRows} * parts.config->vocab;
  }
  return engine;
}

void Engine::SetChannel(std::shared_ptr<ExpertChannel> channel) {
  absl::MutexLock lock(&mutex_);
  if (channel_ != nullptr) channel_->Abort();
  channel_ = std::move(channel);
}

void Engine::SetGroup(std::shared_ptr<Collective> group) {
  absl::MutexLock lock(&mutex_);
  if (group_ != nullptr) group_->Abort();
  group_ = std::move(group);
}

proto::StepResult Engine::RunStep(const proto::StepPlan& plan) {
  proto::StepResult result;
  std::shared_ptr<ExpertChannel> channel;
  std::shared_ptr<Collective> group;
  {
    absl::MutexLock lock(&mutex_);
    channel = channel_;
    group = group_;
  }
  absl::Status status = p_.ranks > 1 && group == nullptr
                            ? FailedPrecondition("the ranks are not connected")
                            : Run(plan, channel.get(), group.get(), result);
  if (!status.ok()) {
    if (group != nullptr) group->Abort();
    result.Clear();
    result.set_error(Message(status));
  }
  result.set_step_id(plan.step_id());
  return result;
}

absl::Status Engine::Run(const proto::StepPlan& plan, ExpertChannel* channel, Collective* group,
                         proto::StepResult& result) {
  timeline::Span span("step", "step", static_cast<int64_t>(plan.step_id()));
  int64_t start = NowUs();
  KT_RETURN_IF_ERROR(CheckStepPlan(plan, p_.limits));
  if (group != nullptr) KT_RETURN_IF_ERROR(CheckSameStep(plan, *group));
  const ModelConfig& c = *p_.config;
  KT_RETURN_IF_ERROR(CheckHeat(plan, c));
  if (plan.mode() == proto::STEP_MODE_LAYERWISE && p_.stream == nullptr) {
    return InvalidArgument(
        "step: mode layerwise, for which this worker has no memory "
        "(--kt-gpu-prefill-token-threshold)");
  }
  for (const proto::BlockCopy& copy : plan.copies()) {
    for (size_t l = 0; l < c.layers.size(); ++l) {
      const AttentionConfig& a = c.attentions[static_cast<size_t>(c.layers[l].attention)];
      const IndexerConfig* indexer =
          a.indexer ? &c.indexers[static_cast<size_t>(*a.indexer)] : nullptr;
      p_.ops->CopyBlock(a, indexer, p_.cache->layer(l), copy.source(), copy.target());
    }
  }
  KT_RETURN_IF_ERROR(input_.Fill(plan, *p_.device));
  for (const proto::SequenceStep& s : plan.sequences()) {
    if (p_.rank != 0) break;
    proto::SequenceResult* r = result.add_sequences();
    r->set_sequence_id(s.sequence_id());
    for (int i = 0; i < s.target_ids_size(); ++i) r->add_targets()->set_token_id(-1);
    if (s.capture().hidden()) {
      for (size_t i = 0; i < c.layers.size() + 2; ++i) r->mutable_capture()->add_hidden();
    }
  }
  const ForwardTaps taps = p_.rank == 0 ? MakeTaps(plan, result) : ForwardTaps{};
  proto::StepMode mode = plan.mode();
  absl::Status forward = RunForward(plan, mode, channel, group, taps);
  if (mode == proto::STEP_MODE_LAYERWISE && absl::IsResourceExhausted(forward)) {
    spdlog::warn("step {}: runs hybrid, not layerwise: {}", plan.step_id(), Message(forward));
    mode = proto::STEP_MODE_HYBRID;
    ClearCaptures(result);
    forward = RunForward(plan, mode, channel, group, taps);
  }
  KT_RETURN_IF_ERROR(forward);

  int64_t head_start = NowUs();
  KT_RETURN_IF_ERROR(Head(plan, group, result));
  if (p_.rank != 0) return absl::OkStatus();
  for (size_t l = 0; l < c.layers.size(); ++l) {
    const std::vector<uint32_t>& counts = p_.forward->expert_counts()[l];
    if (counts.empty()) continue;
    proto::LayerExpertCounts* out = result.add_expert_counts();
    out->set_layer(static_cast<int>(l));
    out->mutable_counts()->Add(counts.begin(), counts.end());
  }
  result.set_mode(mode);
  result.set_placement_version(p_.residents->version());
  for (size_t l : p_.residents->changed()) {
    proto::LayerResidents* out = result.add_residents();
    out->set_layer(static_cast<int>(l));
    const std::vector<int> set = p_.residents->set(l);
    out->mutable_experts()->Add(set.begin(), set.end());
  }
  proto::StepTimings* t = result.mutable_timings();
  SetTimings(*t);
  if (mode == proto::STEP_MODE_LAYERWISE) {
    const StreamTimes& stream = p_.stream->times();
    t->set_copy_bytes(stream.bytes);
    t->set_copy_ms(stream.copy_ms);
    t->set_copy_stall_ms(stream.stall_ms);
    t->set_staged_copies(stream.staged);
  }
  t->set_head_ms(static_cast<double>(NowUs() - head_start) / 1000);
  t->set_total_ms(static_cast<double>(NowUs() - start) / 1000);
  return absl::OkStatus();
}

void Engine::SetTimings(proto::StepTimings& t) const {
  const ForwardTimes& times = p_.forward->times();
  t.set_attention_ms(times.attention_ms);
  t.set_device_moe_ms(times.device_moe_ms);
  t.set_expert_wait_ms(times.expert_wait_ms);
  t.set_expert_hand_overs(times.hand_overs);
  t.set_resident_bytes_read(times.resident_bytes);
  t.set_worker_bytes_read(times.worker_bytes);
}

absl::Status Engine::RunForward(const proto::StepPlan& plan, proto::StepMode mode,
                                ExpertChannel* channel, Collective* group,
                                const ForwardTaps& taps) {
  KT_RETURN_IF_ERROR(p_.residents->BeginStep(plan.placement_version(),
                                             p_.stream != nullptr ? p_.stream->arenas() : nullptr));
  if (mode == proto::STEP_MODE_LAYERWISE) {
    StepExperts experts{.layerwise = true};
    if (p_.residents_change && plan.heat_size() > 0) experts.heat = HeatOf(plan, *p_.config);
    return p_.forward->Run(input_, experts, group, taps);
  }
  if (channel != nullptr) channel->BeginStep();
  const absl::Status status = p_.forward->Run(input_, {.channel = channel}, group, taps);
  if (channel != nullptr) channel->EndStep();
  return status;
}

absl::StatusOr<proto::LayerwiseFacts> Engine::SetArenas(std::shared_ptr<const ExpertArenas> arenas,
                                                        bool measure) {
  proto::LayerwiseFacts facts;
  if (p_.stream == nullptr) return facts;
  KT_RETURN_IF_ERROR(p_.stream->SetArenas(std::move(arenas)));
  if (p_.stream->arenas() == nullptr) return facts;
  if (p_.residents_change) KT_RETURN_IF_ERROR(p_.residents->Reset(*p_.stream->arenas()));
  if (!measure) return facts;
  KT_ASSIGN_OR_RETURN(const ExpertStream::Rate rate, p_.stream->Measure(*p_.residents));
  facts.set_copy_bytes(rate.step_bytes);
  facts.set_copy_gbytes_per_s(rate.gbytes_per_s);
  facts.set_device_ms_per_row(p_.forward->MeasureRow());
  return facts;
}

ForwardTaps Engine::MakeTaps(const proto::StepPlan& plan, proto::StepResult& result) {
  ForwardTaps taps;
  auto any = [&](auto flag) {
    return std::any_of(plan.sequences().begin(), plan.sequences().end(), flag);
  };
  const ModelConfig& c = *p_.config;
  if (any([](const auto& s) { return s.capture().hidden(); })) {
    taps.hidden = [this, &plan, &result, &c](int index, const void* residual) {
      for (int i = 0; i < plan.sequences_size(); ++i) {
        if (!plan.sequences(i).capture().hidden()) continue;
        const SequenceView& view = input_.sequences()[static_cast<size_t>(i)];
        auto* values =
            result.mutable_sequences(i)->mutable_capture()->mutable_hidden(index)->mutable_values();
        int64_t count = int64_t{view.tokens} * c.hidden;
        values->Resize(static_cast<int>(count), 0);
        const auto* first = static_cast<const uint8_t*>(residual) +
                            int64_t{view.first_row} * c.hidden * p_.ops->activation_bytes();
        p_.ops->ReadRows(first, count, values->mutable_data());
      }
    };
  }
  if (any([](const auto& s) { return s.capture().routing(); })) {
    taps.routing = [this, &plan, &result, &c](int layer, const int32_t* ids, const float* weights,
                                              const float* logits) {
      const MoeConfig& moe = c.moes[static_cast<size_t>(*c.layers[static_cast<size_t>(layer)].moe)];
      for (int i = 0; i < plan.sequences_size(); ++i) {
        if (!plan.sequences(i).capture().routing()) continue;
        const SequenceView& view = input_.sequences()[static_cast<size_t>(i)];
        proto::LayerRouting* out = result.mutable_sequences(i)->mutable_capture()->add_routing();
        out->set_layer(layer);
        auto add = [&](auto* field, const auto* values, int width) {
          int count = view.tokens * width;
          field->Resize(count, 0);
          (void)p_.device->CopyAsync(
              field->mutable_data(), values + int64_t{view.first_row} * width,
              static_cast<size_t>(count) * 4, CopyKind::kDeviceToHost, StreamId{});
        };
        add(out->mutable_expert_ids(), ids, moe.top_k);
        add(out->mutable_weights(), weights, moe.top_k);
        add(out->mutable_router_logits(), logits, moe.num_experts);
      }
      (void)p_.device->Synchronize(StreamId{});
    };
  }
  if (any([](const auto& s) { return s.capture().selection(); })) {
    taps.selection = [this, &plan, &result](int layer, const int32_t* selection, int top_k) {
      for (int i = 0; i < plan.sequences_size(); ++i) {
        if (!plan.sequences(i).capture().selection()) continue;
        const SequenceView& view = input_.sequences()[static_cast<size_t>(i)];
        std::vector<int32_t> last(static_cast<size_t>(top_k));
        (void)p_.device->CopyAsync(
            last.data(), selection + int64_t{view.first_row + view.tokens - 1} * top_k,
            last.size() * sizeof(int32_t), CopyKind::kDeviceToHost, StreamId{});
        (void)p_.device->Synchronize(StreamId{});
        proto::LayerSelection* out =
            result.mutable_sequences(i)->mutable_capture()->add_selections();
        out->set_layer(layer);
        for (int32_t position : last) {
          if (position >= 0) out->add_positions(position);
        }
      }
    };
  }
  return taps;
}

absl::Status Engine::Logits(int rows, Collective* group) {
  const PackedMatrix& head = p_.dense->head;
  if (group == nullptr) {
    p_.ops->LinearF32(head, normed_, rows, logits_);
    return absl::OkStatus();
  }
  if (head.n > 0) p_.ops->LinearF32(head, normed_, rows, own_logits_);
  const int vocab = p_.config->vocab;
  std::vector<int64_t> counts;
  for (int r = 0; r < group->size(); ++r)
    counts.push_back(int64_t{rows} * TilesOfRank(vocab, r, group->size()).size());
  KT_RETURN_IF_ERROR(group->AllGather(own_logits_, counts, rank_logits_));
  if (p_.rank != 0) return absl::OkStatus();
  const float* from = rank_logits_;
  for (int r = 0; r < group->size(); ++r) {
    const RowRange part = TilesOfRank(vocab, r, group->size());
    for (int i = 0; i < rows; ++i, from += part.size()) {
      KT_RETURN_IF_ERROR(p_.device->CopyAsync(logits_ + int64_t{i} * vocab + part.begin, from,
                                              static_cast<size_t>(part.size()) * 4,
                                              CopyKind::kDeviceToDevice, StreamId{}));
    }
  }
  return absl::OkStatus();
}

absl::Status Engine::Head(const proto::StepPlan& plan, Collective* group,
                          proto::StepResult& result) {
  timeline::Span span("head and sampling");
  const ModelConfig& c = *p_.config;
  std::vector<HeadRow> rows = RowsOf(plan);
  std::vector<int> picked;
  std::vector<SampleJob> jobs;
  std::vector<SamplingArrays> arrays(kHeadRows);
  std::vector<std::pair<const HeadRow*, bool>> owners;  // of each job; true: a target, not a draw
  for (size_t begin = 0; begin < rows.size(); begin += kHeadRows) {
    std::span<const HeadRow> batch(rows.data() + begin,
                                   std::min<size_t>(kHeadRows, rows.size() - begin));
    int count = static_cast<int>(batch.size());
    picked.clear();
    for (const HeadRow& r : batch) picked.push_back(r.row);
    p_.ops->GatherRows(p_.forward->residual(), picked, c.hidden, picked_);
    p_.ops->RmsNorm(picked_, c.hidden, p_.dense->final_norm, c.rms_norm_eps, count, c.hidden,
                    normed_, c.hidden);
    KT_RETURN_IF_ERROR(Logits(count, group));
    if (p_.rank != 0) continue;

    jobs.clear();
    owners.clear();
    for (int i = 0; i < count; ++i) {
      const HeadRow& r = batch[static_cast<size_t>(i)];
      const proto::SequenceStep& s = plan.sequences(r.sequence);
      if (s.target_ids_size() != 0 && s.target_ids(r.offset) >= 0) {
        jobs.push_back({.row = i,
                        .logprobs = true,
                        .logprob_of = s.target_ids(r.offset),
                        .top_logprobs = s.target_top_logprobs()});
        owners.push_back({&r, true});
      }
      if (s.has_sampling() && r.offset == s.token_ids_size() - 1) {
        SamplingArrays& a = arrays[static_cast<size_t>(i)] = {};
        jobs.push_back({.row = i,
                        .draw = true,
                        .args = ArgsOf(s.sampling(), c.vocab, a),
                        .logprobs = s.sampling().logprobs(),
                        .top_logprobs = s.sampling().top_logprobs()});
        owners.push_back({&r, false});
      }
      proto::SequenceResult* out = result.mutable_sequences(r.sequence);
      if (s.capture().logits()) {
        auto* values = out->mutable_capture()->mutable_logits();
        int at = values->size();
        values->Resize(at + c.vocab, 0);
        KT_RETURN_IF_ERROR(p_.device->CopyAsync(
            values->mutable_data() + at, logits_ + int64_t{i} * c.vocab,
            static_cast<size_t>(c.vocab) * 4, CopyKind::kDeviceToHost, StreamId{}));
      }
      if (s.capture().hidden()) {
        auto* values = out->mutable_capture()
                           ->mutable_hidden(static_cast<int>(c.layers.size()) + 1)
                           ->mutable_values();
        int at = values->size();
        values->Resize(at + c.hidden, 0);
        p_.ops->ReadRows(static_cast<const uint8_t*>(normed_) +
                             int64_t{i} * c.hidden * p_.ops->activation_bytes(),
                         c.hidden, values->mutable_data() + at);
      }
    }
    p_.ops->Sample(logits_, c.vocab, jobs);
    for (size_t j = 0; j < jobs.size(); ++j) {
      const auto& [row, is_target] = owners[j];
      const proto::SequenceStep& s = plan.sequences(row->sequence);
      proto::SequenceResult* out = result.mutable_sequences(row->sequence);
      if (jobs[j].status != SampleStatus::kOk) {
        out->set_error(fmt::format("position {}: {}", s.start_position() + row->offset,
                                   Explain(jobs[j].status)));
      } else if (is_target) {
        *out->mutable_targets(row->offset) = LogprobOf(jobs[j], jobs[j].logprob_of);
      } else {
        out->set_sampled(true);
        out->set_token_id(jobs[j].token);
        if (jobs[j].logprobs) *out->mutable_logprob() = LogprobOf(jobs[j], jobs[j].token);
      }
    }
  }
  return p_.device->Synchronize(StreamId{});
}

}  // namespace kt
