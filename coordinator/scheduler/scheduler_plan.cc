// SPDX-License-Identifier: Apache-2.0
// The half of the scheduler that forms steps: admission, sharing of prompts, token budget,
// preemption.
#include <algorithm>

#include "coordinator/scheduler/scheduler.h"

namespace kt {
namespace {

bool Waits(const Request& request, const std::map<uint64_t, Sequence*>& waiting) {
  return std::any_of(request.choices.begin(), request.choices.end(),
                     [&](const Sequence& choice) { return waiting.contains(choice.id); });
}

}  // namespace

std::optional<proto::StepPlan> Scheduler::NextStep(TimePoint now) {
  if (!ready_ || flight_ || (retry_at_ && now < *retry_at_)) return std::nullopt;
  retry_at_.reset();
  proto::StepPlan plan;
  Flight flight;
  // A plan stays empty when the sequences of the kind whose turn it was had to give their blocks to
  // older ones; each round ends with fewer running sequences.
  while (flight.planned.empty()) {
    Admit();
    if (running_.empty()) return std::nullopt;
    FillPlan(&plan, &flight);
  }
  flight.step_id = next_step_id_++;
  flight.sent = now;
  plan.set_step_id(flight.step_id);
  for (const Planned& p : flight.planned) flight.rows += p.end - p.begin;
  flight.layerwise = threshold_.Choose(flight.rows);
  plan.set_mode(flight.layerwise ? proto::STEP_MODE_LAYERWISE : proto::STEP_MODE_HYBRID);
  placement_.FillPlan(&plan);
  flight_ = std::move(flight);
  return plan;
}

// Lets waiting sequences run, in order, while there are places and blocks for all tokens they have
// so far. A block for each running sequence is kept back, or the newcomer would be pushed out again
// at once. Without any running, the first always fits.
void Scheduler::Admit() {
  const size_t running_max = std::min(config_.options.max_running_requests(), step_tokens_max_);
  const int block_tokens = pool_.block_tokens();
  int available = pool_.available_blocks();
  for (const auto& [id, s] : running_) {
    available -= std::max(pool_.BlocksFor(s->size()) - static_cast<int>(s->table.size()), 0);
  }
  for (auto it = waiting_.begin(); it != waiting_.end() && running_.size() < running_max;) {
    Sequence& sequence = *it->second;
    ++it;
    Sequence* donor = Donor(sequence);
    if (donor != nullptr && donor->computed < ForkPosition(sequence))
      continue;  // it is computing their prompt
    if (!CanFork(*sequence.request)) donor = nullptr;
    if (has_state() && StateRoom() < 2) break;
    const int forked = donor != nullptr ? ForkPosition(sequence) : 0;
    const int kept_back = static_cast<int>(running_.size());
    CachedPrefix prefix = FindCached(sequence, sequence.reusable());
    const auto needed = [&] {  // idle blocks are available only until it holds them
      return pool_.BlocksFor(sequence.size()) + prefix.idle -
             std::max(prefix.tokens, forked) / block_tokens;
    };
    if (available - needed() < kept_back)  // no room to copy a block that it would use in part
      prefix = FindCached(sequence, prefix.tokens / block_tokens * block_tokens);
    if (prefix.tokens > forked) {
      donor = nullptr;
    } else {
      prefix = {};
    }
    if (!running_.empty() && available - needed() < kept_back) break;
    available -= needed();
    Start(sequence, donor, prefix);
  }
}

// The running choice of the same request that has computed most; nullptr: none runs.
Sequence* Scheduler::Donor(const Sequence& sequence) {
  Sequence* donor = nullptr;
  for (Sequence& other : sequence.request->choices) {
    if (&other == &sequence || !running_.contains(other.id)) continue;
    if (donor == nullptr || other.computed > donor->computed) donor = &other;
  }
  return donor;
}

void Scheduler::Start(Sequence& sequence, Sequence* donor, const CachedPrefix& prefix) {
  Request& request = *sequence.request;
  waiting_.erase(sequence.id);
  running_.emplace(sequence.id, &sequence);
  if (request.queued) stats_.prompt_tokens += sequence.prompt_size();
  queued_ -= request.queued;
  request.queued = false;
  SetDeadline(request, std::nullopt);
  if (donor != nullptr) {
    sequence.computed = ForkPosition(sequence);
    sequence.table = pool_.Fork(donor->table, sequence.computed);
    sequence.cached = std::min(donor->cached, sequence.computed / pool_.block_tokens());
    sequence.frontier = std::max(sequence.frontier, sequence.computed);
    if (has_state()) sequence.state = states_.Share(request.prompt_state);
  }
  Adopt(sequence, prefix);
  if (!Waits(request, waiting_)) DropPromptState(request);
}

void Scheduler::Preempt(Sequence& sequence) {
  ReleaseCache(sequence);
  sequence.computed = sequence.cached = 0;
  sequence.state_kept = sequence.state_landmark = 0;
  running_.erase(sequence.id);
  waiting_.emplace(sequence.id, &sequence);
  if (Donor(sequence) == nullptr) DropPromptState(*sequence.request);
}

// Slots that are neither promised to running sequences nor kept for waiting ones.
int Scheduler::StateRoom() const {
  return states_.slots() - 2 * static_cast<int>(running_.size()) - prompt_states_;
}

// Positions that a choice takes over from another that has computed them.
int Scheduler::ForkPosition(const Sequence& sequence) const {
  return has_state() ? sequence.prompt_size() - 1 : sequence.shareable();
}

// Whether what a running choice has computed up to there can be taken over.
bool Scheduler::CanFork(const Request& request) const {
  return !has_state() || request.prompt_state != 0;
}

bool Scheduler::AwaitsPromptState(const Request& request) const {
  return request.prompt_state == 0 && request.spec.max_new_tokens > 0 && Waits(request, waiting_);
}

void Scheduler::DropPromptState(Request& request) {
  prompt_states_ -= request.prompt_state != 0;
  states_.Release(&request.prompt_state);
}

void Scheduler::RequeueAll() {
  while (!running_.empty()) Preempt(*running_.begin()->second);
}

// The request that runs alone, being at its last try; nullptr: none.
const Request* Scheduler::Suspect() const {
  for (const auto& [id, sequence] : running_) {
    if (sequence->request->lost_steps > 0 &&
        sequence->request->lost_steps + 1 >= config_.lost_steps_max) {
      return sequence->request;
    }
  }
  return nullptr;
}

void Scheduler::FillPlan(proto::StepPlan* plan, Flight* flight) {
  if (caches()) AdoptFromRunning();
  const Request* suspect = Suspect();
  const auto takes_part = [suspect](const Sequence& s) {
    return suspect == nullptr || s.request == suspect;
  };
  int decodes = 0, prefills = 0;
  for (const auto& [id, s] : running_) {
    if (takes_part(*s)) ++(s->NeedsPrefill() ? prefills : decodes);
  }
  const bool mixed = config_.options.enable_mixed_chunk();
  const bool prefill = prefills > 0 && (mixed || decodes == 0 || !last_was_prefill_);
  const bool decode = decodes > 0 && (mixed || !prefill);
  last_was_prefill_ = prefill;

  int budget = step_tokens_max_ - (decode ? decodes : 0);
  for (int limit : {config_.options.chunked_prefill_size(), config_.options.max_prefill_tokens()}) {
    if (limit > 0) budget = std::min(budget, limit);
  }
  // In order of arrival: who is pushed out is younger than the current one, so not in the plan yet.
  for (auto it = running_.begin(); it != running_.end();) {
    const uint64_t id = it->first;
    Sequence& s = *it->second;
    if (takes_part(s)) {
      if (!s.NeedsPrefill()) {
        if (decode) PlanSequence(s, 1, plan, flight);
      } else if (prefill && budget > 0) {
        budget -= PlanSequence(s, budget, plan, flight);
      }
    }
    it = running_.upper_bound(id);
  }
}

// Returns the tokens planned; 0: the sequence was pushed out for want of blocks.
int Scheduler::PlanSequence(Sequence& s, int budget, proto::StepPlan* plan, Flight* flight) {
  const int begin = s.computed;
  int end = std::min(s.size(), begin + budget);
  if (s.request->captures && begin < s.captured)
    end = std::min(end, s.captured);  // what has been delivered is not captured again
  if (has_state() && begin < ForkPosition(s) && AwaitsPromptState(*s.request))
    end = std::min(end, ForkPosition(s));
  if (has_state() && caches()) end = EndWithState(s, begin, end);
  while (pool_.WritableEnd(s.table, begin, end) < end && running_.rbegin()->second != &s) {
    ++stats_.preemptions;
    Preempt(*running_.rbegin()->second);
  }
  end = pool_.WritableEnd(s.table, begin, end);
  if (end == begin) {
    ++stats_.preemptions;
    Preempt(s);
    return 0;
  }
  cache_.FreeBlocks(pool_.BlocksToWrite(s.table, begin, end));
  std::vector<BlockCopy> copies;
  pool_.PrepareWrite(&s.table, begin, end, &copies);
  for (const BlockCopy& copy : copies) {
    proto::BlockCopy* added = plan->add_copies();
    added->set_source(copy.source);
    added->set_target(copy.target);
  }
  if (has_state()) {
    cache_.FreeState();
    s.state_target = states_.Take();
  }
  proto::SequenceStep* step = plan->add_sequences();
  FillSequenceStep(s, begin, end, step);
  flight->planned.push_back(
      {&s, begin, end, step->has_sampling(), step->target_ids_size(), step->sampling().logprobs()});
  s.in_flight = true;
  ++s.request->in_flight;
  return end - begin;
}

}  // namespace kt
