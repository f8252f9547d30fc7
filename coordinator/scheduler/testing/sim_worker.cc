// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/testing/sim_worker.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "common/base/status.h"
#include "common/sim/rng.h"
#include "coordinator/scheduler/testing/fake_tokenizer.h"

namespace kt::testing {
namespace {

// The model: what a position leaves in the cache, how positions fold into a state, what is sampled
// from a state.
uint64_t CacheEntry(int32_t token, int position) {
  return SplitMix64((uint64_t(position) << 32) + token);
}
uint64_t Fold(uint64_t state, uint64_t entry) { return SplitMix64(state ^ entry); }
float Logit(uint64_t state) { return static_cast<float>(state % 1000); }

TokenLogprob Logprob(uint64_t state, int32_t token, int top) {
  TokenLogprob out{.token_id = token, .logprob = -Logit(SplitMix64(state + token))};
  for (int i = 0; i < top; ++i) out.top.emplace_back(i, -Logit(SplitMix64(state + i)));
  return out;
}

void ToProto(const TokenLogprob& in, proto::TokenLogprob* out) {
  out->set_token_id(in.token_id);
  out->set_logprob(in.logprob);
  for (const auto& [id, logprob] : in.top) {
    out->add_top_ids(id);
    out->add_top_logprobs(logprob);
  }
}

int32_t Sample(uint64_t state, const proto::Sampling& s) {
  uint64_t draw = SplitMix64(
      state + SplitMix64(s.seed() + SplitMix64((uint64_t{s.choice()} << 32) + s.position())));
  draw +=
      std::bit_cast<uint32_t>(s.temperature()) + 3 * std::bit_cast<uint32_t>(s.top_p()) + s.top_k();
  for (const proto::TokenCount& c : s.counts()) {
    draw += SplitMix64((uint64_t(c.token_id()) << 32) + 2 * c.in_output() + c.in_prompt());
  }
  for (const proto::LogitBias& b : s.logit_bias())
    draw += SplitMix64(b.token_id() + std::bit_cast<uint32_t>(b.bias()));
  int32_t token;
  do {
    draw = SplitMix64(draw);
    token = static_cast<int32_t>(draw % FakeTokenizer::kVocab);
  } while (std::count(s.suppressed_ids().begin(), s.suppressed_ids().end(), token) > 0);
  return token;
}

}  // namespace

SimWorker::SimWorker(int kv_blocks, int block_tokens, int step_tokens_max, int state_slots)
    : kv_blocks_(kv_blocks),
      block_tokens_(block_tokens),
      step_tokens_max_(step_tokens_max),
      cache_(size_t(kv_blocks) * block_tokens, 0xbad),
      states_(state_slots > 0 ? state_slots + 1 : 0, 0xbad) {}

bool SimWorker::CheckTables(const proto::StepPlan& plan) {
  const size_t before = breaches_.size();
  const auto breach = [&](std::string what) {
    breaches_.push_back(fmt::format("step {}: {}", plan.step_id(), what));
  };
  const auto in_range = [&](int32_t block) { return block >= 0 && block < kv_blocks_; };
  if (plan.step_id() <= last_step_id_) breach("step ids do not increase");
  last_step_id_ = plan.step_id();
  if (plan.sequences().empty()) breach("no sequences");
  for (const proto::BlockCopy& copy : plan.copies()) {
    if (!in_range(copy.source()) || !in_range(copy.target()) || copy.source() == copy.target())
      breach("bad copy");
  }
  int tokens = 0;
  std::map<int32_t, int> holders;
  std::set<uint64_t> ids;
  for (const proto::SequenceStep& s : plan.sequences()) {
    tokens += s.token_ids_size();
    if (!ids.insert(s.sequence_id()).second) breach("a sequence twice");
    if (s.token_ids().empty()) breach("no tokens");
    const int end = s.start_position() + s.token_ids_size();
    if (s.block_table_size() != (end + block_tokens_ - 1) / block_tokens_)
      breach("table does not end with the tokens");
    if (!s.target_ids().empty() && s.target_ids_size() != s.token_ids_size())
      breach("targets of another length");
    for (int32_t block : s.block_table()) {
      if (!in_range(block)) breach("block out of range");
      ++holders[block];
    }
  }
  if (tokens > step_tokens_max_)
    breach(fmt::format("{} tokens, limit {}", tokens, step_tokens_max_));
  for (const proto::SequenceStep& s : plan.sequences()) {
    for (int i = s.start_position() / block_tokens_; i < s.block_table_size(); ++i) {
      if (holders[s.block_table(i)] > 1)
        breach(fmt::format("block {} is written and is in two tables", s.block_table(i)));
    }
  }
  std::map<int32_t, int> sources, targets;
  const int32_t slots = states_.empty() ? 0 : static_cast<int32_t>(states_.size()) - 1;
  for (const proto::SequenceStep& s : plan.sequences()) {
    const bool reads = slots > 0 && s.start_position() > 0;
    if (s.state_source() < (reads ? 1 : 0) || s.state_source() > (reads ? slots : 0))
      breach(fmt::format("state_source {}", s.state_source()));
    if (s.state_target() < std::min(slots, 1) || s.state_target() > slots)
      breach(fmt::format("state_target {}", s.state_target()));
    ++sources[s.state_source()];
    ++targets[s.state_target()];
  }
  for (const auto& [slot, count] : targets) {
    if (slots > 0 && (count > 1 || sources.contains(slot)))
      breach(fmt::format("slot {} is written and used elsewhere", slot));
  }
  for (const auto& [slot, count] : sources) forks_ += slot != 0 ? count - 1 : 0;
  return breaches_.size() == before;
}

void SimWorker::RunStates(const proto::StepPlan& plan) {
  for (const proto::SequenceStep& s : plan.sequences()) {
    const uint64_t source = s.state_source() == 0 ? 0 : states_[s.state_source()];
    if (source != StateAt(s, s.start_position() - 1)) {
      breaches_.push_back(fmt::format("step {}: slot {} is not the state of {} tokens",
                                      plan.step_id(), s.state_source(), s.start_position()));
    }
    states_[s.state_target()] = StateAt(s, s.start_position() + s.token_ids_size() - 1);
  }
}

uint64_t SimWorker::StateAt(const proto::SequenceStep& step, int position) const {
  uint64_t state = 0;
  for (int p = 0; p <= position; ++p) {
    state = Fold(
        state,
        cache_[size_t(step.block_table(p / block_tokens_)) * block_tokens_ + p % block_tokens_]);
  }
  return state;
}

proto::StepResult SimWorker::Run(const proto::StepPlan& plan) {
  proto::StepResult result;
  result.set_step_id(plan.step_id());
  if (!CheckTables(plan)) {
    result.set_error("plan breaks the contract");
    return result;
  }
  for (const proto::BlockCopy& copy : plan.copies()) {
    std::copy_n(cache_.begin() + copy.source() * block_tokens_, block_tokens_,
                cache_.begin() + copy.target() * block_tokens_);
  }
  for (const proto::SequenceStep& s : plan.sequences()) {
    for (int i = 0; i < s.token_ids_size(); ++i) {
      const int p = s.start_position() + i;
      cache_[size_t(s.block_table(p / block_tokens_)) * block_tokens_ + p % block_tokens_] =
          CacheEntry(s.token_ids(i), p);
    }
  }
  if (!states_.empty()) RunStates(plan);
  for (const proto::SequenceStep& s : plan.sequences()) {
    proto::SequenceResult* r = result.add_sequences();
    r->set_sequence_id(s.sequence_id());
    for (int i = 0; i < s.target_ids_size(); ++i) {
      TokenLogprob target;
      if (s.target_ids(i) != -1) {
        target =
            Logprob(StateAt(s, s.start_position() + i), s.target_ids(i), s.target_top_logprobs());
      }
      ToProto(target, r->add_targets());
    }
    if (s.capture().logits()) {
      for (int i = 0; i < s.token_ids_size(); ++i) {
        r->mutable_capture()->add_logits(Logit(StateAt(s, s.start_position() + i)));
      }
    }
    if (s.has_sampling()) {
      const uint64_t state = StateAt(s, s.start_position() + s.token_ids_size() - 1);
      r->set_sampled(true);
      r->set_token_id(Sample(state, s.sampling()));
      if (s.sampling().logprobs()) {
        ToProto(Logprob(state, r->token_id(), s.sampling().top_logprobs()), r->mutable_logprob());
      }
    }
  }
  result.mutable_timings()->set_total_ms(1);
  return result;
}

ReferenceOutput RunAlone(const GenerationRequest& request, uint64_t seed, int choice) {
  ReferenceOutput out;
  const SamplingParams& p = request.sampling;
  std::vector<int32_t> tokens = request.prompt_ids;
  const int prompt = static_cast<int>(tokens.size());
  const bool penalty =
      p.presence_penalty != 0 || p.frequency_penalty != 0 || p.repetition_penalty != 1;
  std::vector<int32_t> stop_tokens = request.stop_token_ids;
  if (!request.ignore_eos) stop_tokens.push_back(FakeTokenizer::kEos);

  uint64_t state = 0;
  // A choice computes the last prompt position for itself if it samples: its first token comes from
  // there.
  const int capture_from = choice == 0 ? 0 : prompt - (request.max_new_tokens > 0 ? 1 : 0);
  const auto run = [&](int position) {
    state = Fold(state, CacheEntry(tokens[position], position));
    if (request.capture.logits() && position >= capture_from)
      out.captured_logits.push_back(Logit(state));
  };
  for (int i = 0; i < prompt; ++i) {
    run(i);
    if (choice == 0 && request.prompt_logprobs && i + 1 < prompt) {
      out.prompt_logprobs.push_back(Logprob(state, tokens[i + 1], request.top_logprobs));
    }
  }
  const FakeTokenizer tokenizer;
  StreamDecoder decoder(&tokenizer, request.skip_special_tokens);
  std::string searched;  // text in which stop strings count
  const auto find_stop = [&] {
    for (size_t end = 1; end <= searched.size(); ++end) {
      const std::string* longest = nullptr;
      for (const std::string& stop : request.stop) {
        if (end >= stop.size() && searched.compare(end - stop.size(), stop.size(), stop) == 0 &&
            (longest == nullptr || stop.size() > longest->size())) {
          longest = &stop;
        }
      }
      if (longest == nullptr) continue;
      searched.resize(end - longest->size());
      out.matched_stop = *longest;
      out.finish_reason = FinishReason::kStop;
      return;
    }
  };
  out.finish_reason = request.max_new_tokens == 0 ? FinishReason::kLength : FinishReason::kNone;
  while (out.finish_reason == FinishReason::kNone) {
    const int position = static_cast<int>(tokens.size()) - prompt;
    proto::Sampling s;
    s.set_seed(seed);
    s.set_choice(choice);
    s.set_position(position);
    s.set_temperature(p.temperature);
    s.set_top_p(p.top_p);
    s.set_top_k(p.top_k);
    for (const auto& [id, bias] : p.logit_bias) {
      s.add_logit_bias()->set_token_id(id);
      s.mutable_logit_bias()->rbegin()->set_bias(bias);
    }
    for (int32_t id = 0; penalty && id < FakeTokenizer::kVocab; ++id) {
      const int in_prompt = std::count(tokens.begin(), tokens.begin() + prompt, id);
      const int in_output = std::count(tokens.begin() + prompt, tokens.end(), id);
      if (in_prompt + in_output == 0) continue;
      proto::TokenCount* c = s.add_counts();
      c->set_token_id(id);
      c->set_in_output(in_output);
      c->set_in_prompt(in_prompt > 0);
    }
    const bool may_stop = position >= request.min_new_tokens;
    if (!may_stop) s.mutable_suppressed_ids()->Add(stop_tokens.begin(), stop_tokens.end());
    const int32_t token = Sample(state, s);
    out.token_ids.push_back(token);
    if (request.logprobs) out.logprobs.push_back(Logprob(state, token, request.top_logprobs));
    if (may_stop && std::count(stop_tokens.begin(), stop_tokens.end(), token) > 0) {
      out.finish_reason = FinishReason::kStop;
      out.matched_token = token;
      break;
    }
    (may_stop ? searched : out.text) += decoder.Push(token);
    find_stop();
    tokens.push_back(token);
    if (out.finish_reason == FinishReason::kNone) {
      if (position + 1 == request.max_new_tokens) {
        out.finish_reason = FinishReason::kLength;
      } else {
        run(static_cast<int>(tokens.size()) - 1);
      }
    }
  }
  if (out.matched_stop.empty()) searched += decoder.Flush();
  out.text += searched;
  return out;
}

}  // namespace kt::testing
