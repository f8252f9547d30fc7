// SPDX-License-Identifier: Apache-2.0
// Random requests and faults, replayable from a seed. For every client: the tokens are those of its
// request alone, no gap, no repeat, exactly one end of every choice, with and without prefix cache;
// the pools are empty at the end; once faults stop everything ends. KT_SIM_SEEDS (default 300) and
// KT_SIM_FIRST_SEED choose the seeds.
#include <gtest/gtest.h>

#include <cstdlib>

#include "common/base/status.h"
#include "common/sim/rng.h"
#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/testing/fake_tokenizer.h"
#include "coordinator/scheduler/testing/sim_worker.h"
#include "coordinator/scheduler/testing/test_client.h"

namespace kt {
namespace {

using testing::FakeTokenizer;
using testing::SimWorker;
using testing::TestClient;

struct Totals {
  uint64_t requests = 0, complete = 0, failed = 0, cancelled = 0, refused = 0, steps = 0, lost = 0,
           preemptions = 0, recomputed = 0, forks = 0, prompt_tokens = 0, cached = 0, flushes = 0;
};

class Simulation {
 public:
  Simulation(uint64_t seed, Totals* totals) : rng_(seed), totals_(totals) {
    proto::SchedulerOptions& o = config_.options;
    o.set_block_tokens(rng_.Between(1, 8));
    o.set_chunked_prefill_size(rng_.Chance(0.2) ? -1 : rng_.Between(1, 24));
    o.set_max_prefill_tokens(rng_.Chance(0.5) ? -1 : rng_.Between(1, 40));
    o.set_max_running_requests(rng_.Between(1, 10));
    o.set_max_queued_requests(rng_.Between(1, 30));
    o.set_enable_mixed_chunk(rng_.Chance(0.5));
    o.set_stream_interval(rng_.Chance(0.6) ? 1 : rng_.Between(2, 5));
    o.set_random_seed(seed);
    config_.eos_token_ids = {FakeTokenizer::kEos};
    config_.queue_timeout = std::chrono::seconds(rng_.Chance(0.3) ? 5 : 100000);
    gives_up_ = rng_.Chance(0.5);
    if (!gives_up_) config_.lost_steps_max = 1000000;
    fault_rate_ = rng_.Chance(0.3) ? 0 : 0.05;
    kv_blocks_ = static_cast<int>(rng_.Chance(0.3) ? rng_.Between(100, 600) : rng_.Between(6, 60));
    step_tokens_max_ = static_cast<int>(rng_.Between(1, 32));
    if (rng_.Chance(0.5)) config_.state_slots = rng_.Between(2, 2 * o.max_running_requests() + 2);
    o.set_prefix_cache(rng_.Chance(0.7));
    auto scheduler = Scheduler::Create(config_, &tokenizer_);
    scheduler_ = *std::move(scheduler);
  }

  void Run() {
    StartWorkers();
    const int events = static_cast<int>(rng_.Between(200, 600));
    for (int i = 0; i < events && !Broken(); ++i) RandomEvent();
    Settle();
    if (!Broken()) CheckEnd();
    const SchedulerStats stats = scheduler_->stats();
    totals_->requests += stats.requests_accepted;
    totals_->failed += stats.requests_failed;
    totals_->cancelled += stats.requests_cancelled;
    totals_->refused += stats.requests_refused;
    totals_->steps += stats.steps;
    totals_->lost += stats.steps_lost;
    totals_->preemptions += stats.preemptions;
    totals_->recomputed += stats.tokens_recomputed;
    totals_->prompt_tokens += stats.prompt_tokens;
    totals_->cached += stats.tokens_cached;
    totals_->forks += forks_ + worker_->forks();
  }

  const std::string& breach() const { return breach_; }

 private:
  struct Entry {
    GenerationRequest request;
    uint64_t seed;
    std::shared_ptr<TestClient> client;
    bool cancelled = false;
    int events_at_cancel = 0;
  };

  bool Broken() const { return !breach_.empty(); }
  void Break(std::string what) {
    if (!Broken()) breach_ = std::move(what);
  }

  void RandomEvent() {
    clock_.Advance(std::chrono::milliseconds(rng_.Between(0, 60)));
    if (rng_.Chance(0.15)) AddRequest();
    if (rng_.Chance(0.03) && !entries_.empty()) CancelSome();
    if (rng_.Chance(0.01)) {
      scheduler_->FlushCache();
      ++totals_->flushes;
      Audit();
    }
    if (rng_.Chance(fault_rate_)) Fault();
    if (!workers_up_ && rng_.Chance(0.3)) StartWorkers();
    if (late_ &&
        rng_.Chance(0.3)) {  // perhaps when new workers run another step of the same sequences
      scheduler_->OnStepResult(*late_, clock_.Now());
      late_.reset();
      Audit();
    }
    scheduler_->OnTimer(clock_.Now());
    Turn(/*faults=*/true);
  }

  // The step in flight returns, or goes wrong; then the next is planned.
  void Turn(bool faults) {
    if (plan_ && !(faults && rng_.Chance(0.2))) {
      proto::StepResult result = worker_->Run(*plan_);
      if (!worker_->breaches().empty()) return Break(worker_->breaches()[0]);
      plan_.reset();
      if (faults && rng_.Chance(fault_rate_)) Spoil(&result);
      scheduler_->OnStepResult(result, clock_.Now());
      if (rng_.Chance(0.05))
        scheduler_->OnStepResult(result, clock_.Now());  // again: late, ignored
      Audit();
    }
    if (!plan_ && !Broken()) {
      plan_ = scheduler_->NextStep(clock_.Now());
      if (plan_) CheckPlan();
      Audit();
    }
  }

  void Spoil(proto::StepResult* result) {
    switch (rng_.Between(0, 3)) {
      case 0:
        return result->set_error("device fault");
      case 1:
        return result->mutable_sequences()->RemoveLast();
      case 2:
        return result->mutable_sequences(0)->set_token_id(-5);
      default:
        result->mutable_sequences(0)->set_error("logits not finite");
        sequence_errors_ = true;
    }
  }

  void Fault() {
    scheduler_->OnWorkersLost("worker killed", clock_.Now());
    if (plan_) late_ = worker_->Run(*plan_);
    plan_.reset();
    workers_up_ = false;
    Audit();
  }

  void StartWorkers() {
    scheduler_->OnWorkersReady(kv_blocks_, step_tokens_max_, clock_.Now());
    if (worker_) forks_ += worker_->forks();
    worker_ = std::make_unique<SimWorker>(kv_blocks_, config_.options.block_tokens(),
                                          step_tokens_max_, config_.state_slots);
    plan_.reset();
    workers_up_ = true;
  }

  void AddRequest() {
    Entry entry{.request = RandomRequest(), .client = nullptr};
    entry.client = std::make_shared<TestClient>(entry.request.n);
    const uint64_t drawn =
        SplitMix64(config_.options.random_seed() + scheduler_->stats().requests_accepted);
    entry.seed = entry.request.sampling.seed.value_or(drawn);
    const absl::Status status = scheduler_->Add(entry.request, entry.client, clock_.Now());
    const int pool = kv_blocks_ * config_.options.block_tokens();
    const int needs = static_cast<int>(entry.request.prompt_ids.size()) +
                      std::max(entry.request.max_new_tokens - 1, 0);
    if (absl::IsInvalidArgument(status) != (needs > pool))
      Break("refused for want of blocks, or not: " + Message(status));
    if (status.ok()) entries_.push_back(std::move(entry));
  }

  GenerationRequest RandomRequest() {
    GenerationRequest r;
    r.id = fmt::format("r{}", next_id_++);
    const int prompt =
        static_cast<int>(rng_.Chance(0.2) ? rng_.Between(20, 100) : rng_.Between(1, 20));
    if (rng_.Chance(0.5) && !entries_.empty()) BeginLikeAnother(&r);
    for (int i = 0; i < prompt; ++i)
      r.prompt_ids.push_back(static_cast<int32_t>(rng_.Between(1, FakeTokenizer::kVocab - 1)));
    r.n = static_cast<int>(rng_.Chance(0.3) ? rng_.Between(2, 6) : 1);
    r.max_new_tokens = static_cast<int>(rng_.Between(1, 40));
    if (rng_.Chance(0.2)) r.min_new_tokens = static_cast<int>(rng_.Between(0, r.max_new_tokens));
    if (rng_.Chance(0.5)) r.sampling.seed = rng_.Next();
    if (rng_.Chance(0.3)) r.sampling.frequency_penalty = 0.5f;
    if (rng_.Chance(0.2)) r.sampling.logit_bias = {{3, 1.5f}};
    for (int i = rng_.Chance(0.4) ? 3 : 0; i > 0; --i) {
      std::string stop;
      for (int k = static_cast<int>(rng_.Between(2, 4)); k > 0; --k)
        stop += static_cast<char>('a' + rng_.Between(0, 3));
      r.stop.push_back(stop);
    }
    if (rng_.Chance(0.3)) r.stop_token_ids = {static_cast<int32_t>(rng_.Between(1, 31))};
    r.ignore_eos = rng_.Chance(0.4);
    r.skip_special_tokens = rng_.Chance(0.7);
    r.logprobs = rng_.Chance(0.3);
    r.top_logprobs = static_cast<int>(rng_.Between(0, 3));
    r.prompt_logprobs = rng_.Chance(0.2);
    if (rng_.Chance(0.2)) r.capture.set_logits(true);
    if ((r.prompt_logprobs || r.capture.logits()) && rng_.Chance(0.3))
      r.max_new_tokens = r.min_new_tokens = 0;
    return r;
  }

  // A prompt and some of its answer, as far as it is known: the next turn, a retry, another branch.
  void BeginLikeAnother(GenerationRequest* r) {
    const Entry& entry = entries_[rng_.Between(0, static_cast<int64_t>(entries_.size()) - 1)];
    std::vector<int32_t> tokens = entry.request.prompt_ids;
    for (const auto& choice : entry.client->outputs) {
      if (choice.token_ids.empty()) continue;
      tokens.insert(tokens.end(), choice.token_ids.begin(), choice.token_ids.end());
      break;
    }
    if (rng_.Chance(0.4)) tokens.resize(rng_.Between(1, static_cast<int64_t>(tokens.size())));
    tokens.resize(std::min<size_t>(tokens.size(), 150));
    r->prompt_ids = std::move(tokens);
  }

  void CancelSome() {
    Entry& entry = entries_[rng_.Between(0, static_cast<int64_t>(entries_.size()) - 1)];
    scheduler_->Cancel(entry.request.id);
    if (entry.cancelled || entry.client->ended()) return;
    entry.cancelled = true;
    entry.events_at_cancel = entry.client->events;
    if (entry.client.use_count() != 1) Break("the sink is held after Cancel");
  }

  void CheckPlan() {
    int prefill = 0;
    bool long_prefill = false, decode = false;
    for (const proto::SequenceStep& s : plan_->sequences()) {
      if (s.token_ids_size() > 1) {
        prefill += s.token_ids_size();
        long_prefill = true;
      } else if (s.has_sampling()) {
        decode = true;
      }
      const int last =
          (s.start_position() + s.token_ids_size() - 1) / config_.options.block_tokens();
      for (int i = s.start_position() / config_.options.block_tokens(); i <= last; ++i) {
        const BlockPool& pool = scheduler_->pool();
        if (pool.refs(s.block_table(i)) != 1) Break("a written block is shared");
        if (pool.kept(s.block_table(i))) Break("a written block is in the prefix cache");
      }
      if (config_.state_slots > 0 && scheduler_->states().refs(s.state_target()) != 1)
        Break("a written slot is shared");
    }
    for (int limit :
         {config_.options.chunked_prefill_size(), config_.options.max_prefill_tokens()}) {
      if (limit > 0 && prefill > limit) Break("more prefill tokens than allowed");
    }
    if (!config_.options.enable_mixed_chunk() && long_prefill && decode) Break("a mixed step");
    if (plan_->sequences_size() > config_.options.max_running_requests())
      Break("too many sequences run");
  }

  void Audit() {
    if (const absl::Status status = scheduler_->Audit(); !status.ok()) Break(Message(status));
  }

  // No more faults: all must end within a number of steps that is linear in the work.
  void Settle() {
    if (!workers_up_) StartWorkers();
    int64_t turns = 100;
    for (const Entry& e : entries_)
      turns += 20 * e.request.n *
               static_cast<int64_t>(e.request.prompt_ids.size() + e.request.max_new_tokens);
    while (!Broken() && (plan_ || !scheduler_->idle())) {
      clock_.Advance(std::chrono::milliseconds(1));
      const auto timer = scheduler_->NextTimer();
      if (!plan_ && timer && *timer > clock_.Now() &&
          *timer - clock_.Now() < std::chrono::seconds(1)) {
        clock_.Advance(*timer - clock_.Now());
      }
      Turn(/*faults=*/false);
      if (--turns == 0) Break("no end in sight");
    }
  }

  void CheckEnd() {
    for (const Entry& e : entries_) {
      if (const std::string wrong = e.client->Compare(e.request, e.seed); !wrong.empty())
        return Break(wrong);
      if (e.cancelled) {
        if (e.client->events != e.events_at_cancel) return Break("an event after Cancel");
      } else if (!e.client->ended()) {
        return Break("request " + e.request.id + " has no end");
      } else if (e.client->error.ok()) {
        ++totals_->complete;
      } else {
        const std::string why = Message(e.client->error);
        const bool timed_out = why.find("to be run") != std::string::npos &&
                               config_.queue_timeout < std::chrono::hours(1);
        const bool given_up = gives_up_ && why.find("given up after 3") != std::string::npos;
        const bool own_error = sequence_errors_ && why.find("not finite") != std::string::npos;
        if (!timed_out && !given_up && !own_error) return Break("failed without a cause: " + why);
      }
    }
    const bool caches = config_.options.prefix_cache();
    SchedulerStats stats = scheduler_->stats();
    if (!caches && stats.blocks_cached + stats.tokens_cached > 0) Break("the cache is not off");
    if (stats.blocks_used + stats.blocks_cached + scheduler_->pool().free_blocks() != kv_blocks_)
      Break("blocks do not add up");
    if (stats.states_cached + scheduler_->states().free_slots() != config_.state_slots)
      Break("slots do not add up");
    scheduler_->FlushCache();
    Audit();
    stats = scheduler_->stats();
    if (stats.blocks_cached + stats.states_cached != 0) Break("the cache is not empty");
    if (stats.blocks_used != 0 || scheduler_->states().free_slots() != config_.state_slots ||
        stats.sequences_running + stats.sequences_waiting + stats.requests_queued != 0) {
      Break("something is left");
    }
    if (stats.requests_accepted !=
        stats.requests_finished + stats.requests_failed + stats.requests_cancelled) {
      Break("counters do not add up");
    }
  }

  Rng rng_;
  Totals* totals_;
  SimulatedClock clock_;
  FakeTokenizer tokenizer_;
  SchedulerConfig config_;
  bool gives_up_;
  double fault_rate_;
  int kv_blocks_, step_tokens_max_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<SimWorker> worker_;
  std::optional<proto::StepPlan> plan_;    // in flight
  std::optional<proto::StepResult> late_;  // of a step whose workers were lost
  int forks_ = 0;                          // of earlier workers
  bool workers_up_ = false;
  bool sequence_errors_ = false;
  std::vector<Entry> entries_;
  int next_id_ = 0;
  std::string breach_;
};

uint64_t FromEnvironment(const char* name, uint64_t fallback) {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : std::strtoull(value, nullptr, 10);
}

TEST(SchedulerSimTest, EveryClientGetsTheTokensOfItsRequestAlone) {
  const uint64_t first = FromEnvironment("KT_SIM_FIRST_SEED", 1),
                 seeds = FromEnvironment("KT_SIM_SEEDS", 300);
  Totals totals;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    Simulation simulation(seed, &totals);
    simulation.Run();
    ASSERT_EQ(simulation.breach(), "") << "seed " << seed;
  }
  std::printf(
      "%lu seeds: %lu requests (%lu complete, %lu failed, %lu cancelled), %lu refused, %lu steps, "
      "%lu lost, %lu preemptions, %lu tokens computed again, %lu forks of states, %lu of %lu "
      "prompt "
      "tokens found in the cache, %lu flushes\n",
      seeds, totals.requests, totals.complete, totals.failed, totals.cancelled, totals.refused,
      totals.steps, totals.lost, totals.preemptions, totals.recomputed, totals.forks, totals.cached,
      totals.prompt_tokens, totals.flushes);
  if (seeds < 100) return;
  // The simulation did meet what it is about.
  EXPECT_GT(totals.complete, totals.requests / 2);
  EXPECT_GT(totals.failed, 0u);
  EXPECT_GT(totals.cancelled, 0u);
  EXPECT_GT(totals.refused, 0u);
  EXPECT_GT(totals.lost, 100u);
  EXPECT_GT(totals.preemptions, 100u);
  EXPECT_GT(totals.forks, 100u);
  EXPECT_GT(totals.cached, totals.prompt_tokens / 40);
  EXPECT_GT(totals.flushes, 100u);
}

}  // namespace
}  // namespace kt
