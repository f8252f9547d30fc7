// SPDX-License-Identifier: Apache-2.0
// Shapes of MoE layers by the name of the model that has them.
#ifndef KT_CLI_BENCH_BENCH_SHAPE_H_
#define KT_CLI_BENCH_BENCH_SHAPE_H_

#include <string>

#include "absl/status/statusor.h"
#include "kernels/cpu/expert_ffn/moe_ffn.h"

namespace kt::cli {

// "qwen3-30b", "HIDDENxINTERMEDIATExEXPERTSxTOPK", ... InvalidArgument: neither.
absl::StatusOr<MoeShape> ParseBenchShape(const std::string& name);

std::string BenchShapeNames();  // "qwen3-30b|deepseek-v3|..."

}  // namespace kt::cli

#endif  // KT_CLI_BENCH_BENCH_SHAPE_H_
