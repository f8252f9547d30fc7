// SPDX-License-Identifier: Apache-2.0
#include "coordinator/runtime_state.h"

#include <fmt/format.h>

#include "common/rpc/handshake.h"
#include "common/rpc/runtime_config.h"

namespace kt {

bool RuntimeState::Ready() const { return !draining_ && links_->was_serving(); }

Json RuntimeState::Health() const {
  Json health = links_->Health();
  if (draining_) health["state"] = "draining";
  health["warnings"] = Warnings();
  health["cpu_throttled_periods"] = throttled_periods_.load();
  const SchedulerStats stats = loop_->stats();
  health["prefix_cache"] = {{"enabled", config_.scheduler().prefix_cache()},
                            {"hit_rate", CacheHitRate(stats)},
                            {"kv_blocks", stats.blocks_cached},
                            {"states", stats.states_cached}};
  const ExpertUse use = experts_->use();
  health["experts_on_device"] =
      Json{{"hits", use.hits}, {"misses", use.misses}, {"hit_rate", use.hit_rate()}};
  return health;
}

std::vector<std::string> RuntimeState::Warnings() const {
  const auto& at_start = config_.experts().warnings();
  std::vector<std::string> warnings(at_start.begin(), at_start.end());
  for (const WorkerEndpoint& worker : links_->Ready()) {
    const std::string& text = worker.facts.memory().warning();
    if (!text.empty()) warnings.push_back(fmt::format("{}: {}", WorkerName(worker.key), text));
  }
  return warnings;
}

Json RuntimeState::ModelInfo() const {
  const proto::ModelOptions& m = config_.model();
  const proto::ExpertOptions& e = config_.experts();
  Json layers = Json::array();
  for (size_t l = 0; l < model_.layers.size(); ++l) layers.push_back(Json{{"layer", l}});
  Json embeddings;
  for (const WorkerEndpoint& worker : links_->Ready()) {
    const std::string engine = WorkerName(worker.key);
    auto part = [&](const proto::PartWeights& w) {
      return Json{{"engine", engine}, {"precision", w.precision()}, {"bytes", w.bytes()}};
    };
    if (worker.facts.has_embeddings()) embeddings = part(worker.facts.embeddings());
    for (const proto::LayerWeights& w : worker.facts.layers()) {
      if (w.layer() < 0 || static_cast<size_t>(w.layer()) >= layers.size()) continue;
      Json& layer = layers[static_cast<size_t>(w.layer())];
      if (w.has_attention()) layer["attention"] = part(w.attention());
      if (w.has_ffn()) layer["ffn"] = part(w.ffn());
      if (!w.has_experts()) continue;
      Json experts = part(w.experts());
      experts["experts"] = w.expert_count();
      layer["experts"].push_back(std::move(experts));
    }
  }
  return Json{{"model_path", m.path()},
              {"tokenizer_path", m.path()},
              {"is_generation", true},
              {"served_model_name", m.served_model_name()},
              {"model_type", model_.model_type},
              {"architectures", Json::array({model_.architecture})},
              {"context_length", m.context_length()},
              {"vocab_size", model_.vocab},
              {"kt_method", e.method()},
              {"expert_workers", e.worker_count()},
              {"activation_dtype", config_.device().activation_dtype()},
              {"device", config_.device().kind()},
              {"embeddings", std::move(embeddings)},
              {"layers", std::move(layers)}};
}

Json RuntimeState::ServerInfo() const {
  Json info = ParseJson(RuntimeConfigToJson(config_, false)).value_or(Json::object());
  SchedulerStats stats = loop_->stats();
  info["version"] = BuildId();
  info["max_total_num_tokens"] = stats.blocks_total * stats.block_tokens;
  info["internal_states"] =
      Json::array({Json{{"requests_live", stats.requests_live},
                        {"requests_queued", stats.requests_queued},
                        {"sequences_running", stats.sequences_running},
                        {"kv_blocks_used", stats.blocks_used},
                        {"kv_blocks_total", stats.blocks_total},
                        {"kv_blocks_cached", stats.blocks_cached},
                        {"states_cached", stats.states_cached},
                        {"prompt_tokens", stats.prompt_tokens},
                        {"tokens_cached", stats.tokens_cached},
                        {"tokens_recomputed", stats.tokens_recomputed},
                        {"tokens_prefilled", stats.tokens_prefilled},
                        {"tokens_generated", stats.tokens_generated},
                        {"preemptions", stats.preemptions},
                        {"steps", stats.steps},
                        {"steps_lost", stats.steps_lost},
                        {"step_seconds", stats.step_seconds},
                        {"layerwise", Json{{"steps", stats.steps_layerwise},
                                           {"threshold_rows", stats.layerwise_threshold},
                                           {"evidence", stats.layerwise_evidence},
                                           {"copied_bytes", stats.timings.copy_bytes()},
                                           {"copy_ms", stats.timings.copy_ms()},
                                           {"copy_stall_ms", stats.timings.copy_stall_ms()},
                                           {"staged_copies", stats.timings.staged_copies()},
                                           {"residents_changed", stats.residents_changed}}},
                        {"step_ms", Json{{"attention", stats.timings.attention_ms()},
                                         {"device_moe", stats.timings.device_moe_ms()},
                                         {"expert_wait", stats.timings.expert_wait_ms()},
                                         {"head", stats.timings.head_ms()},
                                         {"total", stats.timings.total_ms()}}},
                        {"expert_hand_overs", stats.timings.expert_hand_overs()}}});
  return info;
}

}  // namespace kt
