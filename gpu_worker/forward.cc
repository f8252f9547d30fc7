// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/forward.h"

#include <algorithm>
#include <array>

#include "common/base/status.h"
#include "common/observe/timeline.h"
#include "common/placement/update_policy.h"
#include "common/weights/tensor_shard.h"
#include "worker/expert_timing.h"

namespace kt {
namespace {

constexpr int64_t kExpertTimeoutUs = 30'000'000;

double Since(int64_t start_us) { return static_cast<double>(NowUs() - start_us) / 1000; }

// Widths of the workspace: the widest of all layers.
struct Widths {
  explicit Widths(const ModelConfig& c) {
    for (const MoeConfig& m : c.moes) {
      experts = std::max(experts, m.num_experts);
      top_k = std::max(top_k, m.top_k);
    }
  }
  int experts = 0, top_k = 0;
};

}  // namespace

size_t Forward::WorkspaceBytes(const ModelConfig& c, int tokens_max, int activation_bytes) {
  Widths w(c);
  size_t a = static_cast<size_t>(2 * c.hidden) * static_cast<size_t>(activation_bytes);
  size_t f = static_cast<size_t>(2 * c.hidden + w.experts + 2 * w.top_k + 1) * 4;
  // Every piece starts on 256 bytes.
  return (a + f) * static_cast<size_t>(tokens_max) + 16 * 256 +
         FfnBuffers::Bytes(FfnWidth(c), tokens_max, activation_bytes);
}

absl::StatusOr<std::unique_ptr<Forward>> Forward::Create(const Parts& parts) {
  std::unique_ptr<Forward> forward(new Forward(parts));
  Forward& f = *forward;
  const ModelConfig& c = *parts.config;
  Widths w(c);
  int ab = parts.ops->activation_bytes();
  KT_ASSIGN_OR_RETURN(f.attention_,
                      AttentionBlock::Create({.config = parts.config,
                                              .device = parts.device,
                                              .ops = parts.ops,
                                              .dense = parts.dense,
                                              .cache = parts.cache,
                                              .tokens_max = parts.tokens_max,
                                              .fp8_index_keys = parts.fp8_index_keys}));
  KT_ASSIGN_OR_RETURN(f.memory_, parts.device->Allocate(WorkspaceBytes(c, parts.tokens_max, ab),
                                                        "workspace (--chunked-prefill-size)"));
  uint8_t* next = f.memory_.As<uint8_t>();
  auto take = [&](int width, int bytes) {
    uint8_t* p = next;
    next += (static_cast<size_t>(width) * static_cast<size_t>(parts.tokens_max) *
                 static_cast<size_t>(bytes) +
             255) /
            256 * 256;
    return p;
  };
  for (void** p : {&f.residual_, &f.normed_}) *p = take(c.hidden, ab);
  auto take_f32 = [&](int width) { return reinterpret_cast<float*>(take(width, 4)); };
  for (float** p : {&f.part_, &f.routed_}) *p = take_f32(c.hidden);
  f.logits_ = take_f32(w.experts);
  f.weights_ = take_f32(w.top_k);
  f.shared_gate_ = take_f32(1);
  f.ids_ = reinterpret_cast<int32_t*>(take(w.top_k, 4));
  f.ffn_ = FfnBuffers::Carve(next, FfnWidth(c), parts.tokens_max);
  f.host_ids_.resize(static_cast<size_t>(w.top_k) * static_cast<size_t>(parts.tokens_max));
  f.host_weights_.resize(f.host_ids_.size());
  f.counts_.resize(c.layers.size());
  for (size_t l = 0; l < c.layers.size(); ++l) {
    if (!c.layers[l].moe) continue;
    size_t experts = static_cast<size_t>(c.moes[static_cast<size_t>(*c.layers[l].moe)].num_experts);
    f.counts_[l].assign(experts, 0);
  }
  return forward;
}

absl::Status Forward::Embed(const StepInput& input, Collective* group) {
  const int tokens = input.tokens(), hidden = p_.config->hidden;
  if (group == nullptr) {
    p_.ops->Embed(p_.dense->embedding, input.token_ids(), tokens, residual_);
    return absl::OkStatus();
  }
  const int first = TilesOfRank(p_.config->vocab, group->rank(), group->size()).begin;
  p_.ops->EmbedPart(p_.dense->embedding, first, input.token_ids(), tokens, hidden, part_);
  KT_RETURN_IF_ERROR(group->AllReduce(part_, int64_t{tokens} * hidden));
  p_.ops->Round(part_, tokens, hidden, residual_);
  return absl::OkStatus();
}

absl::Status Forward::Close(std::span<const float* const> parts, int tokens, Collective* group) {
  const int hidden = p_.config->hidden;
  if (group == nullptr) {
    p_.ops->AddParts(residual_, parts, tokens, hidden);
    return absl::OkStatus();
  }
  float* sum = !parts.empty() && parts[0] == routed_ ? routed_ : part_;
  p_.ops->SumParts(parts, tokens, hidden, sum);
  KT_RETURN_IF_ERROR(group->AllReduce(sum, int64_t{tokens} * hidden));
  p_.ops->AddParts(residual_, std::array<const float*, 1>{sum}, tokens, hidden);
  return absl::OkStatus();
}

// All ranks begin, or none does.
absl::Status Forward::BeginLayerwise(Collective* group) {
  absl::Status begun = p_.stream->Begin(*p_.residents);
  if (group == nullptr) return begun;
  float without = absl::IsResourceExhausted(begun) ? 1 : 0;
  if (!begun.ok() && without == 0) return begun;
  KT_RETURN_IF_ERROR(group->AllReduce(&without, 1));
  if (begun.ok() && without > 0)
    return ResourceExhausted("{} of {} ranks have no memory for a layerwise step", without,
                             group->size());
  return begun;
}

absl::Status Forward::Run(const StepInput& input, const StepExperts& experts, Collective* group,
                          const ForwardTaps& taps) {
  times_ = {};
  if (!experts.layerwise) return RunLayers(input, experts, group, taps);
  absl::Status status = BeginLayerwise(group);
  if (status.ok()) {
    status = RunLayers(input, experts, group, taps);
    // The other ranks are in the middle of it.
    if (group != nullptr && absl::IsResourceExhausted(status))
      status = Aborted("{}", Message(status));
  }
  const absl::Status ended = p_.stream->End();
  return status.ok() ? ended : status;
}

absl::Status Forward::RunLayers(const StepInput& input, const StepExperts& experts,
                                Collective* group, const ForwardTaps& taps) {
  const ModelConfig& c = *p_.config;
  int tokens = input.tokens();
  KT_RETURN_IF_ERROR(Embed(input, group));
  attention_.BeginStep(input);
  if (taps.hidden) taps.hidden(0, residual_);
  for (size_t l = 0; l < c.layers.size(); ++l) {
    int64_t start = NowUs();
    const LayerWeights& w = p_.dense->layers[l];
    p_.ops->RmsNorm(residual_, c.hidden, w.input_norm, c.rms_norm_eps, tokens, c.hidden, normed_,
                    c.hidden);
    {
      timeline::Span span("attention", "layer", static_cast<int64_t>(l));
      KT_RETURN_IF_ERROR(attention_.Run(l, normed_, input, group, taps.selection, part_));
    }
    KT_RETURN_IF_ERROR(Close(std::array<const float*, 1>{part_}, tokens, group));
    p_.ops->RmsNorm(residual_, c.hidden, w.post_attention_norm, c.rms_norm_eps, tokens, c.hidden,
                    normed_, c.hidden);
    if (c.layers[l].moe) {
      times_.attention_ms += Since(start);
      KT_RETURN_IF_ERROR(Moe(l, tokens, experts, group, taps));
    } else {
      timeline::Span span("feed-forward", "layer", static_cast<int64_t>(l));
      // A rank may have no rows of a narrow layer.
      const std::array<const float*, 1> part{part_};
      const bool has_rows = w.ffn.gate.n > 0;
      if (has_rows) RunFfn(*p_.ops, w.ffn, normed_, tokens, ffn_, part_);
      KT_RETURN_IF_ERROR(Close(std::span(part).first(has_rows ? 1 : 0), tokens, group));
      times_.attention_ms += Since(start);
    }
    if (taps.hidden) taps.hidden(static_cast<int>(l) + 1, residual_);
  }
  return absl::OkStatus();
}

absl::Status Forward::Moe(size_t l, int tokens, const StepExperts& experts, Collective* group,
                          const ForwardTaps& taps) {
  const ModelConfig& c = *p_.config;
  const MoeConfig& moe = c.moes[static_cast<size_t>(*c.layers[l].moe)];
  const LayerWeights& w = p_.dense->layers[l];
  int64_t start = NowUs();
  {
    timeline::Span span("router", "layer", static_cast<int64_t>(l));
    p_.ops->RouterLogits(w.router, w.router_bias, moe.num_experts, c.hidden, normed_, tokens,
                         logits_);
    p_.ops->RouterTopK(moe, w.correction_bias, logits_, tokens, ids_, weights_);
  }
  if (taps.routing) taps.routing(static_cast<int>(l), ids_, weights_, logits_);
  KT_RETURN_IF_ERROR(CountExperts(l, moe, tokens));

  ExpertTicket ticket = 0;
  bool submitted = false;
  if (!experts.layerwise && (group == nullptr || group->rank() == 0)) {
    KT_ASSIGN_OR_RETURN(submitted, SubmitExperts(l, moe, tokens, experts.channel, &ticket));
  }
  // While expert workers or copies are at it: resident and shared experts. The order of the sum is
  // fixed, and the same in both modes: device, shared, workers (or what was copied from them).
  float *sum = routed_, *part = part_;
  bool any = false;
  const auto add = [&](auto compute) {
    compute(any ? part : sum);
    if (any) p_.ops->AddF32(part, tokens, c.hidden, sum);
    any = true;
  };
  const auto add_experts = [&](const ExpertPart& e) {
    add([&](float* y) {
      timeline::Span span("device experts", "layer", static_cast<int64_t>(l));
      p_.ops->Experts(moe, e.experts, e.intermediate, normed_, tokens, ids_, weights_, y);
    });
  };
  for (const ExpertPart& e : p_.residents->parts(l)) add_experts(e);
  if (w.ffn.gate.n > 0) {
    add([&](float* y) {
      timeline::Span span("shared experts", "layer", static_cast<int64_t>(l));
      RunFfn(*p_.ops, w.ffn, normed_, tokens, ffn_, y);
      if (w.shared_gate == nullptr) return;
      p_.ops->RouterLogits(w.shared_gate, nullptr, 1, c.hidden, normed_, tokens, shared_gate_);
      p_.ops->ScaleRows(y, shared_gate_, tokens, c.hidden);
    });
  }
  if (experts.layerwise) {
    KT_ASSIGN_OR_RETURN(const std::span<const ExpertPart> copied, p_.stream->Layer(l));
    for (const ExpertPart& e : copied) add_experts(e);
    if (!experts.heat.empty()) KT_RETURN_IF_ERROR(ChangeResidents(l, experts.heat[l], copied));
    KT_RETURN_IF_ERROR(p_.stream->Done());
  }
  times_.device_moe_ms += Since(start);
  std::array<const float*, kRingWorkersMax + 1> parts;
  size_t count = 0;
  if (any) parts[count++] = sum;
  if (submitted) {
    timeline::Span span("wait for expert workers", "layer", static_cast<int64_t>(l));
    int64_t wait_start = NowUs();
    KT_RETURN_IF_ERROR(experts.channel->Wait(ticket, kExpertTimeoutUs));
    times_.expert_wait_ms += Since(wait_start);
    for (int i = 0; i < experts.channel->workers(); ++i)
      parts[count++] = experts.channel->partial(i, ticket);
  }
  return Close(std::span(parts.data(), count), tokens, group);
}

// The step's choice, on the host; how often each expert is in it; what reading those costs.
absl::Status Forward::CountExperts(size_t l, const MoeConfig& moe, int tokens) {
  size_t slots = static_cast<size_t>(tokens) * static_cast<size_t>(moe.top_k);
  KT_RETURN_IF_ERROR(
      p_.device->CopyAsync(host_ids_.data(), ids_, slots * 4, CopyKind::kDeviceToHost, StreamId{}));
  KT_RETURN_IF_ERROR(p_.device->CopyAsync(host_weights_.data(), weights_, slots * 4,
                                          CopyKind::kDeviceToHost, StreamId{}));
  KT_RETURN_IF_ERROR(p_.device->Synchronize(StreamId{}));
  std::vector<uint32_t>& counts = counts_[l];
  std::fill(counts.begin(), counts.end(), 0);
  for (size_t i = 0; i < slots; ++i) ++counts[static_cast<size_t>(host_ids_[i])];
  const std::vector<uint8_t>& resident = p_.residents->flags(l);
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] == 0) continue;
    if (resident[e] != 0) {
      times_.resident_bytes += p_.expert_bytes->resident[l][e];
    } else {
      times_.worker_bytes += p_.expert_bytes->workers[l][e];
    }
  }
  return absl::OkStatus();
}

// The hottest experts, this step's choices included, keep their bytes on the device.
absl::Status Forward::ChangeResidents(size_t l, const std::vector<double>& before,
                                      std::span<const ExpertPart> copied) {
  const UpdatePolicy policy;
  std::vector<double> heat = before;
  AddCounts(counts_[l], policy, heat);
  return p_.residents->Change(l, ChooseResidents(heat, p_.residents->set(l), policy), copied);
}

double Forward::MeasureRow() {
  const int rows = std::min(kMoeTokensPerPass, p_.tokens_max);
  const ExpertTrial trial =
      MakeExpertTrial(*p_.config, rows, p_.ops->activation_bytes() == sizeof(bf16));
  const auto layer = static_cast<size_t>(trial.layer);
  const MoeConfig& moe = p_.config->moes[static_cast<size_t>(*p_.config->layers[layer].moe)];
  const auto copy = [&](void* target, const auto& values) {
    return p_.device->CopyAsync(target, values.data(), values.size() * sizeof(values[0]),
                                CopyKind::kHostToDevice, StreamId{});
  };
  if (!copy(normed_, trial.x).ok() || !copy(ids_, trial.ids).ok() ||
      !copy(weights_, trial.weights).ok())
    return 0;
  const auto run = [&](const ExpertPart& e) {
    p_.ops->Experts(moe, e.experts, e.intermediate, normed_, rows, ids_, weights_, routed_);
  };
  return MsPerRow(*p_.config, trial, [&] {
    for (const ExpertPart& e : p_.residents->parts(layer)) run(e);
    for (const ExpertPart& e : p_.stream->first()) run(e);
    p_.device->Synchronize(StreamId{}).IgnoreError();
  });
}

absl::StatusOr<bool> Forward::SubmitExperts(size_t l, const MoeConfig& moe, int tokens,
                                            ExpertChannel* channel, ExpertTicket* ticket) {
  const size_t slots = static_cast<size_t>(tokens) * static_cast<size_t>(moe.top_k);
  const std::vector<uint8_t>& resident = p_.residents->flags(l);
  bool any = false;
  for (size_t i = 0; i < slots; ++i) {
    if (resident[static_cast<size_t>(host_ids_[i])] != 0) {
      host_ids_[i] = -1;
    } else {
      any = true;
    }
  }
  if (!any) return false;
  if (channel == nullptr)
    return FailedPrecondition(
        "layer {}: tokens are routed to experts of CPU workers, but none is attached", l);
  ExpertChannel::Buffers b = channel->Next();
  size_t row_bytes =
      static_cast<size_t>(moe.width) * static_cast<size_t>(p_.ops->activation_bytes());
  KT_RETURN_IF_ERROR(p_.device->CopyAsync(b.rows, normed_, row_bytes * static_cast<size_t>(tokens),
                                          CopyKind::kDeviceToHost, StreamId{}));
  std::copy_n(host_ids_.begin(), slots, b.ids);
  std::copy_n(host_weights_.begin(), slots, b.weights);
  KT_RETURN_IF_ERROR(p_.device->Synchronize(StreamId{}));
  KT_ASSIGN_OR_RETURN(*ticket, channel->Submit(static_cast<int>(l), tokens));
  ++times_.hand_overs;
  return true;
}

}  // namespace kt
