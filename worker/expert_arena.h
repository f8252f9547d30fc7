// SPDX-License-Identifier: Apache-2.0
// The segment in which an expert worker keeps its experts, as others map it: a page of header, then
// a bank (expert_layout.h). Complete and unchanging from the moment on that the node has it.
#ifndef KT_WORKER_EXPERT_ARENA_H_
#define KT_WORKER_EXPERT_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker/expert_layout.h"

namespace kt {

inline constexpr size_t kArenaHeaderBytes = 4096;  // the bank begins behind them

// What the node knows the arena of one incarnation of an expert worker by.
std::string ExpertArenaName(int worker, uint64_t incarnation);

void WriteArenaHeader(const BankLayout& bank, uint8_t* arena);

// Whether a segment of another process is the arena that `bank` describes. FailedPrecondition says
// what it has and what was expected: other layout version, slice, size or fingerprint.
absl::Status CheckArena(const std::string& name, const uint8_t* arena, size_t bytes,
                        const BankLayout& bank);

}  // namespace kt

#endif  // KT_WORKER_EXPERT_ARENA_H_
