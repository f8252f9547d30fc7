// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/registry.h"

#include "common/base/status.h"

namespace kt {
namespace {

const char* StateName(proto::WorkerState state) {
  switch (state) {
    case proto::WORKER_STATE_LOADING:
      return "loading";
    case proto::WORKER_STATE_READY:
      return "ready";
    case proto::WORKER_STATE_FAILED:
      return "failed";
    default:
      return "absent";
  }
}

}  // namespace

std::string WorkerName(const WorkerKey& key) {
  return fmt::format("{}-{}",
                     key.kind == proto::WORKER_KIND_GPU ? "kt-gpu-worker" : "kt-cpu-expert-worker",
                     key.index);
}

bool Registry::Expected(WorkerKey key) const {
  int count = key.kind == proto::WORKER_KIND_GPU          ? config_.gpu_workers
              : key.kind == proto::WORKER_KIND_CPU_EXPERT ? config_.expert_workers
                                                          : 0;
  return key.index >= 0 && key.index < count;
}

absl::Status Registry::OnRegister(const proto::RegisterRequest& r, TimePoint now) {
  WorkerKey key{r.kind(), r.index()};
  if (!Expected(key))
    return InvalidArgument("register: worker kind {} number {} is not part of this system",
                           static_cast<int>(r.kind()), r.index());
  const HandshakeVersions& v = config_.versions;
  if (r.protocol_version() != v.protocol || r.build_id() != v.build ||
      r.packed_layout_version() != v.packed_layout) {
    return FailedPrecondition(
        "register: {} has protocol {}, build {}, packed layout {}; the coordinator has {}, {}, {}",
        WorkerName(key), r.protocol_version(), r.build_id(), r.packed_layout_version(), v.protocol,
        v.build, v.packed_layout);
  }
  Worker& w = workers_[key];
  if (r.incarnation() == w.incarnation) return absl::OkStatus();  // a retry whose reply was lost
  if (r.incarnation() < w.incarnation) {
    return FailedPrecondition("register: {} has incarnation {}, {} is known already",
                              WorkerName(key), r.incarnation(), w.incarnation);
  }
  if (w.state == proto::WORKER_STATE_READY) Lose(WorkerName(key) + " was started again");
  int losses = w.losses;
  w = Worker{.incarnation = r.incarnation(),
             .address = r.address(),
             .isa = r.isa(),
             .pid = r.pid(),
             .state = proto::WORKER_STATE_LOADING,
             .last_report = now,
             .losses = losses};
  return absl::OkStatus();
}

absl::Status Registry::OnReport(const proto::WorkerReport& r, TimePoint now) {
  WorkerKey key{r.kind(), r.index()};
  auto it = workers_.find(key);
  if (it == workers_.end() || it->second.incarnation != r.incarnation()) {
    return FailedPrecondition("report: {} incarnation {} is not registered", WorkerName(key),
                              r.incarnation());
  }
  if (r.state() == proto::WORKER_STATE_READY && r.kind() == proto::WORKER_KIND_GPU &&
      (r.facts().kv_blocks() < 1 || r.facts().step_tokens_max() < 1)) {
    return InvalidArgument(
        "report: {} is ready with {} KV blocks and {} tokens a step, expected at least 1 of each",
        WorkerName(key), r.facts().kv_blocks(), r.facts().step_tokens_max());
  }
  Worker& w = it->second;
  bool became_ready =
      r.state() == proto::WORKER_STATE_READY && w.state != proto::WORKER_STATE_READY;
  w.state = r.state();
  w.error = r.error();
  w.bytes_loaded = r.bytes_loaded();
  w.bytes_total = r.bytes_total();
  if (r.has_facts()) w.facts = r.facts();
  w.last_report = now;
  if (became_ready) AttachIfComplete();
  return absl::OkStatus();
}

void Registry::OnGone(WorkerKey key, uint64_t incarnation, const std::string& reason) {
  auto it = workers_.find(key);
  if (it == workers_.end() || it->second.incarnation != incarnation) return;  // replaced already
  Worker& w = it->second;
  bool failed = w.state == proto::WORKER_STATE_FAILED;
  if (!failed) w.state = proto::WORKER_STATE_UNSPECIFIED;
  ++w.losses;
  Lose(failed ? fmt::format("{}: {}", WorkerName(key), w.error)
              : fmt::format("{} is gone: {}", WorkerName(key), reason));
}

void Registry::OnAttached(uint64_t generation) {
  if (generation != generation_) return;  // overtaken
  attaching_ = false;
  serving_ = was_serving_ = true;
  last_loss_.clear();
}

void Registry::OnAttachFailed(uint64_t generation, const std::string& reason) {
  if (generation == generation_) Lose("workers could not be connected: " + reason);
}

void Registry::OnStepFailed(uint64_t generation, const std::string& reason) {
  if (generation != generation_ || !serving_) return;  // overtaken
  Lose("a step failed: " + reason);
  AttachIfComplete();
}

void Registry::OnTimer(TimePoint now) {
  for (auto& [key, w] : workers_) {
    if (w.state != proto::WORKER_STATE_READY || now - w.last_report <= config_.silence_max)
      continue;
    w.last_report = now;  // one try per period
    actions_.push_back(KillAction{key});
  }
  if (!serving_ && !attaching_) AttachIfComplete();
}

void Registry::AttachIfComplete() {
  AttachAction action;
  for (auto [kind, count] : {std::pair{proto::WORKER_KIND_GPU, config_.gpu_workers},
                             {proto::WORKER_KIND_CPU_EXPERT, config_.expert_workers}}) {
    for (int i = 0; i < count; ++i) {
      auto it = workers_.find({kind, i});
      if (it == workers_.end() || it->second.state != proto::WORKER_STATE_READY) return;
      const Worker& w = it->second;
      action.workers.push_back({it->first, w.incarnation, w.address, w.isa, w.facts});
    }
  }
  action.generation = ++generation_;
  attaching_ = true;
  actions_.push_back(std::move(action));
}

void Registry::Lose(const std::string& reason) {
  last_loss_ = reason;
  ++generation_;  // an attachment under way is of no use any more
  attaching_ = false;
  if (std::exchange(serving_, false)) actions_.push_back(LostAction{reason});
}

std::vector<WorkerEndpoint> Registry::Ready() const {
  std::vector<WorkerEndpoint> ready;
  for (const auto& [key, w] : workers_) {
    if (w.state == proto::WORKER_STATE_READY)
      ready.push_back({key, w.incarnation, w.address, w.isa, w.facts});
  }
  return ready;
}

Json Registry::Health() const {
  Json health;
  bool failed = false;
  uint64_t loaded = 0, total = 0;
  Json workers = Json::array();
  for (const auto& [key, w] : workers_) {
    failed |= w.state == proto::WORKER_STATE_FAILED;
    loaded += w.bytes_loaded;
    total += w.bytes_total;
    const proto::MemoryFacts& m = w.facts.memory();
    Json pools = Json::array();
    for (const proto::MemoryPool& pool : w.facts.pools())
      pools.push_back({{"name", pool.name()}, {"bytes", pool.bytes()}});
    workers.push_back({{"name", WorkerName(key)},
                       {"state", StateName(w.state)},
                       {"incarnation", w.incarnation},
                       {"pid", w.pid},
                       {"isa", w.isa},
                       {"kernels", w.facts.kernels()},
                       {"threads", w.facts.threads()},
                       {"numa_node", w.facts.numa_node()},
                       {"cpus", std::vector<int>(w.facts.cpus().begin(), w.facts.cpus().end())},
                       {"weight_bytes", w.facts.weight_bytes()},
                       {"memory",
                        {{"pages", m.pages()},
                         {"huge_share", m.huge_share()},
                         {"node_share", m.node_share()},
                         {"gbytes_per_s", m.gbytes_per_s()},
                         {"huge_gbytes_per_s", m.huge_gbytes_per_s()}}},
                       {"pools", std::move(pools)},
                       {"losses", w.losses}});
  }
  health["state"] = serving_ ? "ready" : failed ? "failed" : was_serving_ ? "degraded" : "starting";
  health["progress"] = serving_     ? 1.0
                       : total == 0 ? 0.0
                                    : static_cast<double>(loaded) / static_cast<double>(total);
  health["reasons"] = last_loss_.empty() ? Json::array() : Json::array({last_loss_});
  health["workers"] = std::move(workers);
  return health;
}

}  // namespace kt
