// SPDX-License-Identifier: Apache-2.0
#include "worker/self_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "common/base/aligned_buffer.h"
#include "common/base/status.h"
#include "worker/moe_shape.h"

namespace kt {
namespace {

// Enough for the kernels of many tokens where they are others than those of few.
int TokensFor(Isa isa) { return isa == Isa::kAmx ? kFewTokens + 1 : 2; }

uint64_t Mix(uint64_t x) {  // SplitMix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::vector<float> RunOne(const ExpertCheck& c, const MoeConfig& moe, Isa isa, int layer,
                          const void* x, const std::vector<int32_t>& ids, Parallel& parallel) {
  const int tokens = TokensFor(c.isa);
  MoeFfn ffn(MoeShapeOf(moe, c.intermediate), isa, tokens);
  AlignedBuffer scratch(ffn.ScratchBytes(parallel.threads()));
  std::vector<float> weights(ids.size(), 1.0f), y(static_cast<size_t>(tokens * moe.width));
  ffn.Run({.x = x,
           .x_is_bf16 = c.bf16,
           .tokens = tokens,
           .ids = ids.data(),
           .weights = weights.data(),
           .experts = c.bank->layer(layer),
           .y = y.data()},
          scratch.data(), parallel);
  return y;
}

}  // namespace

void FixedInput(uint64_t seed, int64_t count, bool bf16, void* x) {
  for (int64_t i = 0; i < count; ++i) {
    float value =
        static_cast<float>(static_cast<int64_t>(Mix(seed + static_cast<uint64_t>(i)))) * 0x1p-63f;
    if (bf16) {
      static_cast<struct bf16*>(x)[i] = ToBf16(value);
    } else {
      static_cast<float*>(x)[i] = value;
    }
  }
}

double RelativeError(const float* got, const float* want, int64_t count) {
  double difference = 0, largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(got[i]) || !std::isfinite(want[i]))
      return std::numeric_limits<double>::infinity();
    difference = std::max(difference, std::abs(double{got[i]} - double{want[i]}));
    largest = std::max(largest, std::abs(double{want[i]}));
  }
  return largest == 0 ? difference : difference / largest;
}

absl::Status CheckRows(const std::vector<SelfCheckRow>& rows) {
  for (const SelfCheckRow& r : rows) {
    if (r.error <= r.bound) continue;
    return InvalidArgument(
        "self-check: layer {}, {} ({}): the kernels differ from the scalar reference by {:.3g} of "
        "the largest value, {:.3g} is allowed; the weights are damaged or the processor computes "
        "wrongly (KT_FORCE_ISA chooses other kernels, --selftest off skips this check)",
        r.layer, r.part, r.precision, r.error, r.bound);
  }
  return absl::OkStatus();
}

std::vector<SelfCheckRow> CheckExperts(const ExpertCheck& c, Parallel& parallel) {
  std::vector<SelfCheckRow> rows;
  std::set<std::string> seen;
  const int tokens = TokensFor(c.isa);
  for (size_t l = 0; l < c.sets->size(); ++l) {
    if ((*c.sets)[l].empty()) continue;
    const int layer = static_cast<int>(l);
    const std::string precision = c.precision(layer);
    if (!seen.insert(precision).second && !c.all_layers) continue;
    const MoeConfig& moe = c.config->moes[static_cast<size_t>(*c.config->layers[l].moe)];
    AlignedBuffer x(static_cast<size_t>(tokens) * static_cast<size_t>(moe.width) * 4);
    FixedInput(l, int64_t{tokens} * moe.width, c.bf16, x.data());
    std::vector<int32_t> ids(static_cast<size_t>(tokens) * static_cast<size_t>(moe.top_k), -1);
    for (int t = 0; t < tokens; ++t)
      ids[static_cast<size_t>(t) * static_cast<size_t>(moe.top_k)] = (*c.sets)[l].front();
    const auto got = RunOne(c, moe, c.isa, layer, x.data(), ids, parallel);
    const auto want = RunOne(c, moe, Isa::kScalar, layer, x.data(), ids, parallel);
    rows.push_back({layer, "experts", precision,
                    RelativeError(got.data(), want.data(), static_cast<int64_t>(want.size())),
                    SelfCheckBound(c.bf16 || c.rounded)});
  }
  return rows;
}

}  // namespace kt
