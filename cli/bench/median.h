// SPDX-License-Identifier: Apache-2.0
#ifndef KT_CLI_BENCH_MEDIAN_H_
#define KT_CLI_BENCH_MEDIAN_H_

#include <algorithm>
#include <vector>

namespace kt::cli {

// The upper one of two in the middle; there is a value.
inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace kt::cli

#endif  // KT_CLI_BENCH_MEDIAN_H_
