// SPDX-License-Identifier: Apache-2.0
// Times whole MoE layers as the expert worker runs them, with weights that come from memory, beside
// what the machine reads and multiplies in the same minutes.
#ifndef KT_CLI_BENCH_KERNEL_BENCH_H_
#define KT_CLI_BENCH_KERNEL_BENCH_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/bench/machine_limits.h"
#include "common/base/json.h"

namespace kt::cli {

struct KernelBenchOptions {
  std::vector<std::string> formats;  // empty: all
  std::vector<std::string> shapes = {"qwen3-30b"};
  std::vector<int> tokens = {1, 4, 16, 64, 512, 2048};
  std::vector<int> threads;  // empty: 1 and all of the budget
  double seconds = 0.5;      // of every row, at least two calls
  std::string weights;       // a checkpoint's directory (BenchLayers::Load); empty: random weights
  std::string dump;  // file for rows, routing and results of one call of layer 0; empty: none
};

// One call of a layer.
struct KernelSample {
  double seconds;
  int active_experts;
  double bytes;  // of those experts
};

struct KernelRow {
  std::string format, shape, isa;
  int experts = 0, layers = 0, tokens = 0, threads = 0;
  double operations = 0;  // of a call
  std::vector<KernelSample> samples;
  MachineRates machine;

  // ms, gbytes_per_s, gflops, limit (ms), limited_by and share_of_limit are those of the sample
  // nearest to its limit; *_median are over all samples.
  Json ToJson() const;
};

// `dump` holds for every number T of tokens the tensors T.x BF16 [T, hidden], T.ids I32 [T, top_k],
// T.weights F32 [T, top_k] and T.y F32 [T, hidden]; `weights` takes one format and one shape.
//
// Calls on_row when all rows of a format, shape and number of threads are measured: each is held
// against the best rates measured in that time. What goes on is said on stderr.
absl::Status RunKernelBench(const KernelBenchOptions& options,
                            const std::function<void(const KernelRow&)>& on_row);

}  // namespace kt::cli

#endif  // KT_CLI_BENCH_KERNEL_BENCH_H_
