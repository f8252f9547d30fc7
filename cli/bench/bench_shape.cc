// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_shape.h"

#include <algorithm>
#include <cstdio>

#include "common/base/status.h"

namespace kt::cli {
namespace {

struct NamedShape {
  const char* name;
  MoeShape shape;
};

constexpr NamedShape kShapes[] = {
    {"qwen3-30b", {2048, 768, 128, 8}},
    {"deepseek-v3", {7168, 2048, 32, 8}},  // of 256 experts an eighth, so that layers fit
    {"glm-4.7", {5120, 1536, 160, 8}},
    {"minimax-m2", {3072, 1536, 256, 8}},
    {"kimi-k2", {7168, 2048, 384, 8}},
};
constexpr int kSizeMax = 1 << 16;

}  // namespace

absl::StatusOr<MoeShape> ParseBenchShape(const std::string& name) {
  for (const NamedShape& known : kShapes) {
    if (name == known.name) return known.shape;
  }
  MoeShape s;
  int end = 0;
  const int read = std::sscanf(name.c_str(), "%6dx%6dx%6dx%6d%n", &s.hidden, &s.intermediate,
                               &s.num_experts, &s.top_k, &end);
  if (read != 4 || end != static_cast<int>(name.size()) ||
      std::min({s.hidden, s.intermediate, s.top_k}) < 2 ||
      std::max({s.hidden, s.intermediate, s.num_experts}) > kSizeMax || s.top_k > s.num_experts ||
      s.hidden % 2 != 0 || s.intermediate % 2 != 0) {
    return InvalidArgument(
        "--shape {}: use {} with sizes from 2 to {}, hidden and intermediate even and no more "
        "top-k "
        "than experts",
        name, BenchShapeNames(), kSizeMax);
  }
  return s;
}

std::string BenchShapeNames() {
  std::string names;
  for (const NamedShape& known : kShapes) names += std::string(known.name) + "|";
  return names + "HIDDENxINTERMEDIATExEXPERTSxTOPK";
}

}  // namespace kt::cli
