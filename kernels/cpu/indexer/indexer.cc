// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/indexer/indexer.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/cpu/indexer/indexer_rows.h"
#include "kernels/cpu/simd/dispatch.h"

namespace kt {
namespace {

constexpr int kTaskPositions = 1024;

int PositionRuns(const IndexerArgs& args) {
  return (args.start_position + args.tokens + kTaskPositions - 1) / kTaskPositions;
}

// Larger for a better score: -0 as 0, NaN below all. Without branches: the signs of scores cannot
// be foreseen.
uint32_t Rank(float score) {
  const int32_t bits = std::bit_cast<int32_t>(score + 0.0f);
  const uint32_t flip = static_cast<uint32_t>(bits >> 31) | 0x80000000u;
  return score == score ? static_cast<uint32_t>(bits) ^ flip : 0;
}

// The rank of the k-th best score, and how many scores of exactly that rank are among the k best.
struct Cut {
  uint32_t rank;
  int ties;
};
Cut FindCut(const float* scores, int n, int k) {
  // Digit by digit from the top: how many scores have each value of the next eight bits.
  uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    int count[256] = {};
    for (int i = 0; i < n; ++i) {
      const uint32_t rank = Rank(scores[i]);
      if (uint64_t{rank} >> (shift + 8) == prefix) ++count[rank >> shift & 255];
    }
    uint32_t digit = 255;
    while (count[digit] < k) k -= count[digit--];
    prefix = prefix << 8 | digit;
  }
  return {prefix, k};
}

}  // namespace

int IndexerScoreTasks(const IndexerArgs& args) noexcept { return args.tokens * PositionRuns(args); }

size_t IndexerScratchBytes(int heads, int head_dim) noexcept {
  return sizeof(float) * heads * MlaRowElements(head_dim, 0);
}

KT_DEFINE_ISA_DISPATCH(IndexerScores, IndexerScoreArgs)
KT_DEFINE_ISA_DISPATCH(IndexerQuantize, IndexerQuantizeArgs)

void IndexerScoreTask(Isa isa, const IndexerArgs& args, int task, void* scratch) noexcept {
  const int runs = PositionRuns(args), token = task / runs;
  const int seen = args.start_position + token + 1, begin = task % runs * kTaskPositions;
  if (seen <= args.top_k || begin >= seen) return;
  IndexerScores(
      isa, {&args, token, begin, std::min(begin + kTaskPositions, seen),
            static_cast<int>(MlaRowElements(args.cache.kv_lora, 0)), static_cast<float*>(scratch)});
}

void IndexerSelect(const IndexerArgs& args, int token) noexcept {
  const int seen = args.start_position + token + 1;
  int32_t* const begin = args.selection + int64_t{token} * args.top_k;
  int32_t* end = begin;
  if (seen <= args.top_k) {
    end = begin + seen;
    std::iota(begin, end, 0);
  } else {
    const float* scores = args.scores + token * args.scores_stride;
    Cut cut = FindCut(scores, seen, args.top_k);
    for (int s = 0; s < seen; ++s) {
      const uint32_t rank = Rank(scores[s]);
      if (rank > cut.rank || (rank == cut.rank && cut.ties-- > 0)) *end++ = s;
    }
  }
  std::fill(end, begin + args.top_k, -1);
}

}  // namespace kt
