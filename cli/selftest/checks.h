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
#include "cli/selftest/near_tie.h"
#include "cli/selftest/trace_client.h"

namespace kt {

struct CheckRow {
  std::string name;  // "long logits"
  double value = 0;  // largest difference, or number of disagreements
  double bound = 0;
  bool ok = false;
  std::string note;  // what was allowed and why, or where it went wrong
};

// Of one position in bf16.
struct PositionDifference {
  double logits_max = 0;              // the largest difference of its logits
  std::optional<int> near_tie_layer;  // a layer whose choice of experts there was a near-tie
};

// Rounding flips near-ties of a router, which moves the logits of that position by far more than
// rounding itself does. So a position beyond the bound is left out where a near-tie was, up to a
// quarter of all positions; every other one counts.
CheckRow CheckBf16Max(std::string name, std::span<const PositionDifference> positions,
                      double bound);

// fp32: differences up to 1e-3 (routing weights 1e-4), greedy tokens and expert ids equal. bf16:
// three times the reference's own bf16 noise (at least 0.15 mean, 1.0 max, see CheckBf16Max),
// experts equal but for near-ties, greedy equal up to the first step whose margin is within twice
// that noise. A near-tie (near_tie.h) is one for logits off by 0.03.
absl::StatusOr<std::vector<CheckRow>> RunGoldenChecks(const Golden& golden, bool float32,
                                                      const std::map<int, RouterRule>& rules,
                                                      TraceClient& client);

}  // namespace kt

#endif  // KT_CLI_SELFTEST_CHECKS_H_
