// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/device_check.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/status.h"
#include "gpu_worker/attention_block.h"
#include "gpu_worker/ffn.h"

namespace kt {
namespace {

constexpr int kTokens = 4, kBlockTokens = 16;

// One set of operations with what it needs to run a layer's parts.
struct Rig {
  std::unique_ptr<Ops> ops;
  KvPool cache;
  AttentionBlock attention;
  FfnBuffers ffn;
  DeviceBuffer memory;

  static absl::StatusOr<std::unique_ptr<Rig>> Make(const DeviceCheck& c, Isa isa,
                                                   Parallel& parallel) {
    auto rig = std::make_unique<Rig>();
    HostOpsOptions options = c.ops;
    options.isa = isa;
    options.block_tokens = kBlockTokens;
    options.tokens_max = kTokens;
    options.position_max = kBlockTokens;
    options.linear_width = WidestProjection(*c.config);
    KT_ASSIGN_OR_RETURN(rig->ops, MakeHostOps(options, *c.config, *c.device, parallel));
    KT_ASSIGN_OR_RETURN(rig->cache,
                        KvPool::Allocate(*c.config,
                                         {.blocks = 1,
                                          .block_tokens = kBlockTokens,
                                          .state_slots = HasState(*c.config) ? 1 : 0,
                                          .activation_bytes = rig->ops->activation_bytes()},
                                         *c.device));
    KT_ASSIGN_OR_RETURN(rig->attention, AttentionBlock::Create({.config = c.config,
                                                                .device = c.device,
                                                                .ops = rig->ops.get(),
                                                                .dense = c.dense,
                                                                .cache = &rig->cache,
                                                                .tokens_max = kTokens}));
    int width = std::max(1, FfnWidth(*c.config));
    KT_ASSIGN_OR_RETURN(rig->memory,
                        c.device->Allocate(FfnBuffers::Bytes(width, kTokens, 4), "self-check"));
    rig->ffn = FfnBuffers::Carve(rig->memory.As<uint8_t>(), width, kTokens);
    return rig;
  }
};

absl::StatusOr<StepInput> FourTokens(const ModelConfig& config, Device& device) {
  KT_ASSIGN_OR_RETURN(StepInput input, StepInput::Allocate({.tokens_max = kTokens,
                                                            .sequences_max = 1,
                                                            .vocab = config.vocab,
                                                            .kv_blocks = 1,
                                                            .block_tokens = kBlockTokens,
                                                            .position_max = kBlockTokens},
                                                           device));
  proto::StepPlan plan;
  proto::SequenceStep* s = plan.add_sequences();
  for (int t = 0; t < kTokens; ++t) s->add_token_ids(0);
  s->add_block_table(0);
  s->set_state_target(HasState(config) ? 1 : 0);
  KT_RETURN_IF_ERROR(input.Fill(plan, device));
  return input;
}

}  // namespace

absl::StatusOr<std::vector<SelfCheckRow>> CheckDevice(const DeviceCheck& c, Parallel& parallel) {
  const ModelConfig& config = *c.config;
  KT_ASSIGN_OR_RETURN(auto fast, Rig::Make(c, c.ops.isa, parallel));
  KT_ASSIGN_OR_RETURN(auto scalar, Rig::Make(c, Isa::kScalar, parallel));
  KT_ASSIGN_OR_RETURN(StepInput input, FourTokens(config, *c.device));
  const bool bf16 = c.ops.bf16;
  const int64_t values = int64_t{kTokens} * config.hidden;
  KT_ASSIGN_OR_RETURN(DeviceBuffer x,
                      c.device->Allocate(static_cast<size_t>(values) * 4, "self-check"));
  std::vector<float> got, want;
  std::vector<SelfCheckRow> rows;
  auto compare = [&](int layer, const char* part, const std::string& precision, int64_t count,
                     auto run) {
    got.assign(static_cast<size_t>(count), 0);
    want.assign(static_cast<size_t>(count), 0);
    run(*fast, got.data());
    run(*scalar, want.data());
    rows.push_back({layer, part, precision, RelativeError(got.data(), want.data(), count),
                    SelfCheckBound(bf16)});
  };
  fast->attention.BeginStep(input);
  scalar->attention.BeginStep(input);
  std::set<std::pair<int, std::string>> seen;  // kinds of attention, and -1 for FFNs
  for (size_t l = 0; l < config.layers.size(); ++l) {
    const int layer = static_cast<int>(l);
    const LayerSummary& summary = c.summary->layers[l];
    FixedInput(l, values, bf16, x.data());
    // A layer that shares a selection needs the layer that chose it.
    if (!config.layers[l].shares_selection &&
        (seen.insert({config.layers[l].attention, summary.attention.precision}).second ||
         c.all_layers)) {
      compare(layer, "attention", summary.attention.precision, values, [&](Rig& rig, float* out) {
        rig.attention.Run(l, x.data(), input, nullptr, nullptr, out).IgnoreError();
      });
    }
    const FfnWeights& ffn = c.dense->layers[l].ffn;
    if (ffn.gate.n > 0 && (seen.insert({-1, summary.ffn.precision}).second || c.all_layers)) {
      compare(layer, "ffn", summary.ffn.precision, values, [&](Rig& rig, float* out) {
        RunFfn(*rig.ops, ffn, x.data(), kTokens, rig.ffn, out);
      });
    }
  }
  if (c.all_layers) {
    const int64_t logits = int64_t{kTokens} * c.dense->head.n;
    compare(-1, "head", c.summary->embeddings.precision, logits, [&](Rig& rig, float* out) {
      rig.ops->LinearF32(c.dense->head, x.data(), kTokens, out);
    });
  }
  return rows;
}

}  // namespace kt
