// SPDX-License-Identifier: Apache-2.0
// Sizes that every worker derives from the same configuration.
#ifndef KT_WORKER_STEP_LIMITS_H_
#define KT_WORKER_STEP_LIMITS_H_

#include <algorithm>

#include "proto/config.pb.h"

namespace kt {

// Rows of one step: a full prefill chunk beside a decode token of every running sequence.
inline int StepTokensMax(const proto::SchedulerOptions& o) {
  return o.chunked_prefill_size() + o.max_running_requests();
}

// Blocks of the KV cache.
inline int KvBlocks(const proto::SchedulerOptions& o) {
  return std::max(1, (o.max_total_tokens() + o.block_tokens() - 1) / o.block_tokens());
}

}  // namespace kt

#endif  // KT_WORKER_STEP_LIMITS_H_
