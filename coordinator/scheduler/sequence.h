// SPDX-License-Identifier: Apache-2.0
// A request and its choices as the scheduler keeps them, and what a step says about one of them.
#ifndef KT_COORDINATOR_SCHEDULER_SEQUENCE_H_
#define KT_COORDINATOR_SCHEDULER_SEQUENCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/sim/clock.h"
#include "coordinator/generation/generation.h"
#include "coordinator/scheduler/block_pool.h"
#include "coordinator/scheduler/choice_output.h"

namespace kt {

struct Request;

// One choice: prompt and output tokens, of which the first `computed` are in the cache.
struct Sequence {
  uint64_t id = 0;  // of all sequences, in order of arrival
  int choice = 0;
  Request* request = nullptr;
  ChoiceOutput output;
  BlockTable table;  // empty unless running or in flight
  // Slots of a model with state: what `computed` tokens left (0: none computed), and what the step
  // in flight writes.
  int32_t state = 0;
  int32_t state_target = 0;
  int computed = 0;
  int cached = 0;          // first blocks of the table that the prefix cache keeps: all full ones
  int state_kept = 0;      // position of the state in the prefix cache that a later one replaces
  int state_landmark = 0;  // position of the last one that stays
  int frontier = 0;        // the most that was ever computed
  int captured = 0;        // positions whose capture has been delivered or is another choice's
  bool in_flight = false;  // part of the step that runs now
  std::map<int32_t, proto::TokenCount> counts;  // by token id; only where a penalty is on

  int prompt_size() const;
  int size() const { return prompt_size() + static_cast<int>(output.tokens().size()); }
  int32_t token(int position) const;
  bool NeedsPrefill() const { return size() - computed > 1; }
  // Positions it can share with another choice that has computed them: the prompt, but always
  // leaving one token to run.
  int shareable() const;
  // Positions it may take over from the prefix cache: not those whose results are still to be
  // reported.
  int reusable() const;
  void Push(int32_t token, std::optional<TokenLogprob> logprob);
};

struct Request {
  Request(GenerationRequest spec, std::shared_ptr<GenerationSink> sink, uint64_t first_sequence_id,
          uint64_t seed, const Tokenizer* tokenizer, const std::vector<int32_t>& eos_token_ids,
          int stream_interval);

  const GenerationRequest spec;
  const OutputRules rules;
  const uint64_t seed;
  const bool captures;
  std::shared_ptr<GenerationSink> sink;  // null: ended, remains until the step in flight returns
  std::vector<Sequence> choices;         // never resized: sequences stay where they are
  int choices_left;                      // not finished
  int in_flight = 0;                     // choices in the step that runs now
  int32_t prompt_state = 0;              // slot: see Scheduler, kept for choices that wait
  int cached_tokens = 0;                 // of the prompt, found in the prefix cache
  int lost_steps = 0;                    // steps lost with it since it last got further
  bool queued = true;                    // never admitted so far
  std::optional<TimePoint> deadline;     // waits to be admitted no longer than this
};

// Adds positions [begin, end) of the sequence; its table covers them. Samples if they reach the
// last token. Targets and captures are asked for only where they have not been delivered before.
void FillSequenceStep(const Sequence& sequence, int begin, int end, proto::SequenceStep* step);

}  // namespace kt

#endif  // KT_COORDINATOR_SCHEDULER_SEQUENCE_H_
