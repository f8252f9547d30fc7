// SPDX-License-Identifier: Apache-2.0
// Accounting of state slots, which models with layers of a fixed-size state have beside cache
// blocks: who holds which slot. The bytes are the workers'.
#ifndef KT_COORDINATOR_SCHEDULER_STATE_POOL_H_
#define KT_COORDINATOR_SCHEDULER_STATE_POOL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace kt {

// Slots are numbered from 1; 0 is no slot. A slot is free, or its reference count is the number of
// holders. A step writes only a slot just taken, never one that is shared. Every call takes
// constant time but Audit.
class StatePool {
 public:
  explicit StatePool(int slots);

  int slots() const { return static_cast<int>(refs_.size()) - 1; }
  int free_slots() const { return static_cast<int>(free_.size()); }
  int refs(int32_t slot) const { return refs_[slot]; }

  int32_t Take();  // there is a free one
  int32_t Share(int32_t slot);
  void Release(int32_t* slot);  // *slot is 0 afterwards; 0: nothing

  // Internal: the counts do not agree with `held`, which must be all references there are (zeros
  // count for nothing), or with the free list.
  absl::Status Audit(const std::vector<int32_t>& held) const;

 private:
  std::vector<int> refs_;      // by slot
  std::vector<int32_t> free_;  // used as a stack
};

}  // namespace kt

#endif  // KT_COORDINATOR_SCHEDULER_STATE_POOL_H_
