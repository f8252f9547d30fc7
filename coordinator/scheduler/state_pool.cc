// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/state_pool.h"

#include <numeric>

#include "common/base/status.h"

namespace kt {

StatePool::StatePool(int slots) : refs_(slots + 1, 0), free_(slots) {
  std::iota(free_.rbegin(), free_.rend(), 1);  // slot 1 is handed out first
}

int32_t StatePool::Take() {
  const int32_t slot = free_.back();
  free_.pop_back();
  refs_[slot] = 1;
  return slot;
}

int32_t StatePool::Share(int32_t slot) {
  ++refs_[slot];
  return slot;
}

void StatePool::Release(int32_t* slot) {
  if (*slot != 0 && --refs_[*slot] == 0) free_.push_back(*slot);
  *slot = 0;
}

absl::Status StatePool::Audit(const std::vector<int32_t>& held) const {
  std::vector<int> counted(refs_.size(), 0);
  for (int32_t slot : held) {
    if (slot < 0 || slot > slots())
      return Internal("state pool: slot {} of {} is held", slot, slots());
    ++counted[slot];
  }
  std::vector<int> times_free(refs_.size(), 0);
  for (int32_t slot : free_) ++times_free[slot];
  for (int slot = 1; slot <= slots(); ++slot) {
    if (refs_[slot] != counted[slot] || times_free[slot] != (refs_[slot] == 0)) {
      return Internal("state pool: slot {} has count {}, {} holders and is {} times free", slot,
                      refs_[slot], counted[slot], times_free[slot]);
    }
  }
  return absl::OkStatus();
}

}  // namespace kt
