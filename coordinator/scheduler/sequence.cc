// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/sequence.h"

#include <algorithm>
#include <utility>

namespace kt {
namespace {

bool PenaltyIsOn(const SamplingParams& p) {
  return p.presence_penalty != 0 || p.frequency_penalty != 0 || p.repetition_penalty != 1;
}

std::map<int32_t, proto::TokenCount> CountPrompt(const GenerationRequest& spec) {
  std::map<int32_t, proto::TokenCount> counts;
  if (!PenaltyIsOn(spec.sampling)) return counts;
  for (int32_t id : spec.prompt_ids) {
    counts[id].set_token_id(id);
    counts[id].set_in_prompt(true);
  }
  return counts;
}

void FillSampling(const Sequence& sequence, proto::Sampling* sampling) {
  const Request& request = *sequence.request;
  const GenerationRequest& spec = request.spec;
  const SamplingParams& p = spec.sampling;
  const int position = static_cast<int>(sequence.output.tokens().size());
  sampling->set_temperature(p.temperature);
  sampling->set_top_k(p.top_k);
  sampling->set_top_p(p.top_p);
  sampling->set_min_p(p.min_p);
  sampling->set_presence_penalty(p.presence_penalty);
  sampling->set_frequency_penalty(p.frequency_penalty);
  sampling->set_repetition_penalty(p.repetition_penalty);
  for (const auto& [id, count] : sequence.counts) *sampling->add_counts() = count;
  for (const auto& [id, bias] : p.logit_bias) {
    proto::LogitBias* entry = sampling->add_logit_bias();
    entry->set_token_id(id);
    entry->set_bias(bias);
  }
  if (position < spec.min_new_tokens) {
    sampling->mutable_suppressed_ids()->Add(request.rules.stop_tokens.begin(),
                                            request.rules.stop_tokens.end());
  }
  sampling->set_seed(request.seed);
  sampling->set_choice(sequence.choice);
  sampling->set_position(position);
  sampling->set_logprobs(spec.logprobs);
  sampling->set_top_logprobs(spec.logprobs ? spec.top_logprobs : 0);
}

// The target of a position is the prompt token that follows it. They are wanted once: of positions
// not computed before.
void FillTargets(const Sequence& sequence, int begin, int end, proto::SequenceStep* step) {
  const GenerationRequest& spec = sequence.request->spec;
  const int targets_end = std::min(end, sequence.prompt_size() - 1);
  if (!spec.prompt_logprobs || sequence.choice != 0 || sequence.frontier >= targets_end) return;
  for (int position = begin; position < end; ++position) {
    const bool wanted = position >= sequence.frontier && position < targets_end;
    step->add_target_ids(wanted ? spec.prompt_ids[position + 1] : -1);
  }
  step->set_target_top_logprobs(spec.top_logprobs);
}

}  // namespace

int Sequence::prompt_size() const { return static_cast<int>(request->spec.prompt_ids.size()); }

int32_t Sequence::token(int position) const {
  return position < prompt_size() ? request->spec.prompt_ids[position]
                                  : output.tokens()[position - prompt_size()];
}

int Sequence::shareable() const { return std::min(prompt_size(), size() - 1); }

int Sequence::reusable() const {
  int limit = size() - 1;
  if (request->captures) limit = std::min(limit, captured);
  if (request->spec.prompt_logprobs && choice == 0 && frontier < prompt_size() - 1)
    limit = std::min(limit, frontier);
  return limit;
}

void Sequence::Push(int32_t token, std::optional<TokenLogprob> logprob) {
  if (PenaltyIsOn(request->spec.sampling)) {
    proto::TokenCount& count = counts[token];
    count.set_token_id(token);
    count.set_in_output(count.in_output() + 1);
  }
  output.Push(token, std::move(logprob));
}

Request::Request(GenerationRequest spec_in, std::shared_ptr<GenerationSink> sink,
                 uint64_t first_sequence_id, uint64_t seed, const Tokenizer* tokenizer,
                 const std::vector<int32_t>& eos_token_ids, int stream_interval)
    : spec(std::move(spec_in)),
      rules(spec, tokenizer, eos_token_ids, stream_interval),
      seed(seed),
      captures(spec.capture.logits() || spec.capture.hidden() || spec.capture.routing()),
      sink(std::move(sink)),
      choices_left(spec.n) {
  choices.reserve(spec.n);
  for (int choice = 0; choice < spec.n; ++choice) {
    choices.push_back({.id = first_sequence_id + choice,
                       .choice = choice,
                       .request = this,
                       .output = ChoiceOutput(&rules, choice),
                       .captured = choice == 0 ? 0 : static_cast<int>(spec.prompt_ids.size()) - 1,
                       .counts = CountPrompt(spec)});
  }
}

void FillSequenceStep(const Sequence& sequence, int begin, int end, proto::SequenceStep* step) {
  const Request& request = *sequence.request;
  step->set_sequence_id(sequence.id);
  step->set_start_position(begin);
  step->mutable_token_ids()->Reserve(end - begin);
  for (int position = begin; position < end; ++position)
    step->add_token_ids(sequence.token(position));
  step->mutable_block_table()->Add(sequence.table.begin(), sequence.table.end());
  step->set_state_source(sequence.state);
  step->set_state_target(sequence.state_target);
  if (end == sequence.size() && request.spec.max_new_tokens > 0)
    FillSampling(sequence, step->mutable_sampling());
  FillTargets(sequence, begin, end, step);
  if (request.captures && begin >= sequence.captured)
    *step->mutable_capture() = request.spec.capture;
}

}  // namespace kt
