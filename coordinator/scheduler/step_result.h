// SPDX-License-Identifier: Apache-2.0
// A worker's answer, checked as input from another process before the scheduler believes it.
#ifndef KT_COORDINATOR_SCHEDULER_STEP_RESULT_H_
#define KT_COORDINATOR_SCHEDULER_STEP_RESULT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/generation/generation.h"
#include "proto/step.pb.h"

namespace kt {

struct ExpectedAnswer {
  uint64_t sequence_id;
  bool samples;
  bool logprobs;  // of the sampled token
  int targets;
};

// Fills `answers`, in the order of `expected`, with pointers into `result`. Internal: an answer is
// missing, there are others, or one has not what was asked for (an answer with an error needs
// nothing else).
absl::Status MatchAnswers(const std::vector<ExpectedAnswer>& expected,
                          const proto::StepResult& result,
                          std::vector<const proto::SequenceResult*>* answers);

TokenLogprob FromProto(const proto::TokenLogprob& logprob);

}  // namespace kt

#endif  // KT_COORDINATOR_SCHEDULER_STEP_RESULT_H_
