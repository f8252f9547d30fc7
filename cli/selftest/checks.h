// SPDX-License-Identifier: Apache-2.0
// Compares a running system with golden results.
#ifndef KT_CLI_SELFTEST_CHECKS_H_
#define KT_CLI_SELFTEST_CHECKS_H_

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/selftest/golden.h"
#include "cli/selftest/reference_routing.h"
#include "cli/selftest/trace_client.h"

namespace kt {

struct CheckRow {
  std::string name;  // "long logits"
  double value = 0;  // largest difference, or number of disagreements
  double bound = 0;
  bool ok = false;
  std::string note;  // what was allowed and why, or where it went wrong
};

// Of the logits of one position in bf16.
struct PositionDifference {
  double mean = 0;
  double max = 0;
  std::optional<int> flipped_layer;  // a layer that chose other experts there than in float32
};

// Rows for the mean over the positions that were routed as in float32, and for the largest
// difference over those before the first that was not: later ones attend to what it left in the
// cache.
std::vector<CheckRow> CheckBf16(const std::string& name,
                                std::span<const PositionDifference> positions, double mean_bound,
                                double max_bound);

// What every worker found on every layer: largest difference from the scalar reference on fixed
// inputs, relative to the largest value.
absl::StatusOr<std::vector<CheckRow>> RunSelfChecks(TraceClient& client);

// `reference` null: the system runs in float32. Differences up to 1e-3 (routing weights 1e-4),
// greedy tokens, expert ids and indexer selections equal. Else bf16: three times the reference's
// own bf16 noise (at least 0.15 mean, 1.0 max) where the routing is that of `reference`, greedy
// equal up to the first step whose margin is within twice that noise; prompts longer than an
// indexer's top_k are not compared.
absl::StatusOr<std::vector<CheckRow>> RunGoldenChecks(const Golden& golden,
                                                      const ReferenceRouting* reference,
                                                      TraceClient& client);

}  // namespace kt

#endif  // KT_CLI_SELFTEST_CHECKS_H_
