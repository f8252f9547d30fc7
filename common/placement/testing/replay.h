// SPDX-License-Identifier: Apache-2.0
// Replays made-up expert traffic against placements: what hits and what a run costs, without a
// model. For the benchmark and for the test of the update policy.
#ifndef KT_COMMON_PLACEMENT_TESTING_REPLAY_H_
#define KT_COMMON_PLACEMENT_TESTING_REPLAY_H_

#include <string>
#include <vector>

#include "common/placement/update_policy.h"

namespace kt {

// Conversations: a prompt that runs layerwise (its experts all run on the device and may be kept),
// then decoding in hybrid steps.
struct ReplayShape {
  int layers = 4;
  int experts = 64;  // of each layer
  int top_k = 4;
  int conversations = 400;
  int prompt_tokens = 512;
  int decode_tokens = 512;
  int step_tokens = 32;  // of a hybrid step; background changes are made between steps
};

enum class Traffic {
  kUniform,     // all experts alike
  kZipf,        // by rank, a different order in each layer
  kDrifting,    // Zipf whose ranks change places from conversation to conversation
  kRotating,    // a few experts at a time, always others: as many conversations as `period` each
  kMisleading,  // prompts use other experts than the decoding behind them
  kHostile,     // decoding uses what the dynamic placement does not hold at that moment
};

struct ReplayCase {
  Traffic traffic = Traffic::kUniform;
  double resident_share = 0.1;
  int period = 1;           // of kRotating
  bool background = false;  // also changes between decode steps, one a layer and step
  uint64_t seed = 1;
  ReplayShape shape;
  UpdatePolicy policy;
};

// Of the decode steps; prompts cost every placement the same.
struct ReplayResult {
  double hit_rate = 0;
  // Time in units of one expert's work on the CPU: a hit costs kHitCost, a change what it moves:
  // nothing at a prompt (the bytes are on the device), kMoveCost in the background.
  double cost = 0;
  int64_t changes = 0;
};
inline constexpr double kHitCost = 0.1;
inline constexpr double kMoveCost = 8;

struct ReplayResults {
  ReplayResult uniform;    // static
  ReplayResult frequency;  // static, from the counts of the same traffic
  ReplayResult dynamic;    // starts as uniform
};

// Deterministic.
ReplayResults Replay(const ReplayCase& replay);

std::string TrafficName(const ReplayCase& replay);

// The cases that the bars are about: every traffic at 10 % and 80 %, both ways of changing.
std::vector<ReplayCase> ReplayCases();

// One sentence for each bar that the results miss. Dynamic: hit rate at least 1.2 x uniform's on
// Zipf and drifting traffic at 10 %; cost at most 1.03 x uniform's anywhere; hit rate at 80 % at
// least 0.98 x that of frequency on all but hostile
// traffic, whose future no online choice can know.
std::vector<std::string> MissedBars(const ReplayCase& replay, const ReplayResults& results);

}  // namespace kt

#endif  // KT_COMMON_PLACEMENT_TESTING_REPLAY_H_
