// SPDX-License-Identifier: Apache-2.0
// Sizes that every worker derives from the same configuration.
#ifndef KT_WORKER_STEP_LIMITS_H_
#define KT_WORKER_STEP_LIMITS_H_

#include <algorithm>
#include <cstdint>

#include "proto/config.pb.h"

namespace kt {

// Rows of one step: a full prefill chunk beside a decode token of every running sequence.
inline int StepTokensMax(const proto::SchedulerOptions& o) {
  return o.chunked_prefill_size() + o.max_running_requests();
}

// Blocks of the KV cache.
inline int KvBlocks(const proto::SchedulerOptions& o) {
  const int64_t tokens = o.max_total_tokens();
  return static_cast<int>(std::max<int64_t>(1, (tokens + o.block_tokens() - 1) / o.block_tokens()));
}

// State slots of a model whose layers keep a state of fixed size per sequence: a running sequence
// reads one and writes another, and one more keeps a prompt's state for choices that wait. Two for
// the first sequence would do to make progress, two for each let all of them take part in a step.
// The rest is the prefix cache's, beside those that no running sequence needs.
inline int StateSlots(const proto::SchedulerOptions& o) {
  return 2 * o.max_running_requests() + 1 + o.cached_states();
}

}  // namespace kt

#endif  // KT_WORKER_STEP_LIMITS_H_
