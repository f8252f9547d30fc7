// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/rank_engine.h"

#include <bit>

#include "common/base/status.h"
#include "worker/step_limits.h"

namespace kt {
namespace {

absl::Status CheckIndexKeys(const proto::DeviceOptions& device, const ModelConfig& model) {
  for (const IndexerConfig& ix : model.indexers) {
    if (device.fp8_index_keys() && !std::has_single_bit(static_cast<unsigned>(ix.head_dim)))
      return InvalidArgument(
          "--fp8-index-keys: the model's index_head_dim {} is not a power of two, which the "
          "Hadamard transform needs",
          ix.head_dim);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankEngine>> BuildRankEngine(const RankParts& p) {
  const proto::SchedulerOptions& scheduler = p.config->scheduler();
  const proto::DeviceOptions& options = p.config->device();
  const ModelConfig& model = *p.model;
  KT_RETURN_IF_ERROR(CheckIndexKeys(options, model));
  const int tokens_max = StepTokensMax(scheduler);
  auto rank = std::make_unique<RankEngine>();
  KT_ASSIGN_OR_RETURN(rank->ops, MakeHostOps({.isa = p.isa,
                                              .bf16 = options.activation_dtype() == "bf16",
                                              .block_tokens = scheduler.block_tokens(),
                                              .tokens_max = tokens_max,
                                              .position_max = p.config->model().context_length(),
                                              .linear_width = WidestProjection(model),
                                              .deterministic = options.deterministic()},
                                             model, *p.device, *p.parallel));
  const KvPoolShape shape{.blocks = KvBlocks(scheduler),
                          .block_tokens = scheduler.block_tokens(),
                          .state_slots = HasState(model) ? StateSlots(scheduler) : 0,
                          .activation_bytes = rank->ops->activation_bytes()};
  KT_ASSIGN_OR_RETURN(rank->cache, KvPool::Allocate(model, shape, *p.device));
  KT_ASSIGN_OR_RETURN(rank->forward, Forward::Create({.config = &model,
                                                      .device = p.device,
                                                      .ops = rank->ops.get(),
                                                      .dense = p.dense,
                                                      .residents = p.residents,
                                                      .stream = p.stream,
                                                      .expert_bytes = &p.experts->bytes,
                                                      .cache = &rank->cache,
                                                      .tokens_max = tokens_max,
                                                      .fp8_index_keys = options.fp8_index_keys()}));
  KT_ASSIGN_OR_RETURN(rank->engine,
                      Engine::Create({.config = &model,
                                      .device = p.device,
                                      .ops = rank->ops.get(),
                                      .dense = p.dense,
                                      .cache = &rank->cache,
                                      .forward = rank->forward.get(),
                                      .residents = p.residents,
                                      .residents_change = p.experts->slots,
                                      .stream = p.stream,
                                      .limits = {.tokens_max = tokens_max,
                                                 .sequences_max = scheduler.max_running_requests(),
                                                 .vocab = model.vocab,
                                                 .kv_blocks = shape.blocks,
                                                 .block_tokens = shape.block_tokens,
                                                 .position_max = p.config->model().context_length(),
                                                 .state_slots = shape.state_slots},
                                      .rank = p.rank,
                                      .ranks = options.tensor_parallel_size()}));
  return rank;
}

}  // namespace kt
