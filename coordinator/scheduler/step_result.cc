// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/step_result.h"

#include <algorithm>
#include <unordered_map>

#include "common/base/status.h"

namespace kt {
namespace {

absl::Status CheckAnswer(const ExpectedAnswer& expected, const proto::SequenceResult& answer) {
  if (!answer.error().empty()) return absl::OkStatus();
  if (answer.sampled() != expected.samples || answer.token_id() < 0) {
    return Internal("step result: sequence {} has sampled {} and token {}, expected sampled {}",
                    expected.sequence_id, answer.sampled(), answer.token_id(), expected.samples);
  }
  if (expected.logprobs && !answer.has_logprob()) {
    return Internal("step result: sequence {} has no logprob of its token", expected.sequence_id);
  }
  if (answer.targets_size() != expected.targets) {
    return Internal("step result: sequence {} has {} targets, expected {}", expected.sequence_id,
                    answer.targets_size(), expected.targets);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MatchAnswers(const std::vector<ExpectedAnswer>& expected,
                          const proto::StepResult& result,
                          std::vector<const proto::SequenceResult*>* answers) {
  std::unordered_map<uint64_t, const proto::SequenceResult*> by_id;
  for (const proto::SequenceResult& answer : result.sequences())
    by_id.emplace(answer.sequence_id(), &answer);
  if (by_id.size() != expected.size() ||
      result.sequences_size() != static_cast<int>(expected.size())) {
    return Internal("step result: {} answers for {} different sequences, expected {}",
                    result.sequences_size(), by_id.size(), expected.size());
  }
  for (const ExpectedAnswer& e : expected) {
    const auto it = by_id.find(e.sequence_id);
    if (it == by_id.end()) return Internal("step result: no answer for sequence {}", e.sequence_id);
    KT_RETURN_IF_ERROR(CheckAnswer(e, *it->second));
    answers->push_back(it->second);
  }
  return absl::OkStatus();
}

TokenLogprob FromProto(const proto::TokenLogprob& logprob) {
  TokenLogprob out{.token_id = logprob.token_id(), .logprob = logprob.logprob()};
  const int top = std::min(logprob.top_ids_size(), logprob.top_logprobs_size());
  for (int i = 0; i < top; ++i) out.top.emplace_back(logprob.top_ids(i), logprob.top_logprobs(i));
  return out;
}

}  // namespace kt
