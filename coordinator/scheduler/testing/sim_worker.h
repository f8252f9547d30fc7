// SPDX-License-Identifier: Apache-2.0
// A GPU worker for tests: a "model" whose next token depends on every token before it, read through
// the block tables as the real one reads its cache, so that a wrong table, copy or reuse of a block
// changes the output. State slots hold the same, so that a slot that is not the state of the tokens
// in the tables is found.
#ifndef KT_COORDINATOR_SCHEDULER_TESTING_SIM_WORKER_H_
#define KT_COORDINATOR_SCHEDULER_TESTING_SIM_WORKER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/generation/generation.h"
#include "proto/step.pb.h"

namespace kt::testing {

class SimWorker {
 public:
  // state_slots 0: a model without state.
  SimWorker(int kv_blocks, int block_tokens, int step_tokens_max, int state_slots = 0);

  // Executes the plan. Breaches of the contract of step.proto are added to `breaches`.
  proto::StepResult Run(const proto::StepPlan& plan);
  const std::vector<std::string>& breaches() const { return breaches_; }
  int forks() const { return forks_; }  // sequences that read another's state

 private:
  bool CheckTables(const proto::StepPlan& plan);
  void RunStates(const proto::StepPlan& plan);
  uint64_t StateAt(const proto::SequenceStep& step, int position) const;

  const int kv_blocks_, block_tokens_, step_tokens_max_;
  std::vector<uint64_t> cache_;   // [kv_blocks, block_tokens]
  std::vector<uint64_t> states_;  // by slot; empty: a model without state
  uint64_t last_step_id_ = 0;
  int forks_ = 0;
  std::vector<std::string> breaches_;
};

// What a choice gives when nothing else runs: computed from the definition of the model, without
// any scheduling.
struct ReferenceOutput {
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenLogprob> prompt_logprobs;  // choice 0
  std::vector<float>
      captured_logits;  // one a position, from the first position that this choice computes
  std::string text;
  FinishReason finish_reason = FinishReason::kNone;
  std::string matched_stop;
  std::optional<int32_t> matched_token;
};
ReferenceOutput RunAlone(const GenerationRequest& request, uint64_t seed, int choice);

}  // namespace kt::testing

#endif  // KT_COORDINATOR_SCHEDULER_TESTING_SIM_WORKER_H_
