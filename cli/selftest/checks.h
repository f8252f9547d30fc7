// SPDX-License-Identifier: Apache-2.0
// Compares a running system with golden results.
#ifndef KT_CLI_SELFTEST_CHECKS_H_
#define KT_CLI_SELFTEST_CHECKS_H_

#include <string>
#include <vector>

#include "cli/selftest/golden.h"
#include "cli/selftest/trace_client.h"

namespace kt {

struct CheckRow {
  std::string name;  // "long logits"
  double value = 0;  // largest difference, or number of disagreements
  double bound = 0;
  bool ok = false;
  std::string note;  // what was allowed and why, or where it went wrong
};

// fp32: differences up to 1e-3 (routing weights 1e-4), greedy tokens and expert ids equal. bf16:
// three times the reference's own bf16 noise (at least 0.15 mean, 1.0 max; positions that were
// routed otherwise count in the mean only), greedy equal up to the first step whose margin is
// within twice that noise.
absl::StatusOr<std::vector<CheckRow>> RunGoldenChecks(const Golden& golden, bool float32,
                                                      TraceClient& client);

}  // namespace kt

#endif  // KT_CLI_SELFTEST_CHECKS_H_
