// SPDX-License-Identifier: Apache-2.0
// One warp routes one token. Lane l owns the experts l, l + 32, ...; the steps are those of
// kernels/cpu/router/router_topk.cc.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/router_topk.h"

namespace kt::cuda {
namespace {

static_assert(kRouterLanes == kWarpThreads);

struct RouterShape {
  int64_t logits_stride;
  int experts, top_k, groups, topk_groups;
  bool sigmoid, normalize;
  float scaling_factor;
};

KT_DEVICE inline float MinusInfinity() { return -HUGE_VALF; }

// A candidate; id -1 is none. Higher value first, then lower id.
struct Candidate {
  float value;
  int id;
};
KT_DEVICE inline bool Better(Candidate a, Candidate b) {
  if (a.id < 0 || b.id < 0) return b.id < 0 && a.id >= 0;
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}
KT_DEVICE inline Candidate WarpBest(Candidate best) {
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    const Candidate other = {__shfl_xor_sync(kFullWarp, best.value, distance),
                             __shfl_xor_sync(kFullWarp, best.id, distance)};
    if (Better(other, best)) best = other;
  }
  return best;
}

KT_DEVICE inline void Scores(GlobalPointer<const float> logits, const RouterShape& shape,
                             SharedArray<float, kRouterExpertsMax> score) {
  const int lane = threadIdx.x;
  if (shape.sigmoid) {
    for (int e = lane; e < shape.experts; e += kWarpThreads)
      score[e] = 1.0f / (1.0f + expf(-logits[e]));
    return;
  }
  float max = MinusInfinity();
  for (int e = lane; e < shape.experts; e += kWarpThreads) max = fmaxf(max, logits[e]);
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2)
    max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, distance));
  float sum = 0;
  for (int e = lane; e < shape.experts; e += kWarpThreads) {
    const float weight = expf(logits[e] - max);
    score[e] = weight;
    sum += weight;
  }
  sum = WarpSum(sum);
  for (int e = lane; e < shape.experts; e += kWarpThreads) score[e] = score[e] / sum;
}

// Lane g scores group g; then each lane drops its experts of groups that are out.
KT_DEVICE inline void DropGroups(const RouterShape& shape,
                                 SharedArray<float, kRouterExpertsMax> choice) {
  const int lane = threadIdx.x, size = shape.experts / shape.groups;
  __syncwarp();
  Candidate mine = {0, -1};
  if (lane < shape.groups) {
    float first = MinusInfinity(), second = size > 1 ? MinusInfinity() : 0;
    for (int e = lane * size; e < (lane + 1) * size; ++e) {
      const float c = choice[e];
      if (c > first) {
        second = size > 1 ? first : 0;
        first = c;
      } else if (c > second && size > 1) {
        second = c;
      }
    }
    const float sum = first + second;
    mine = {sum == sum ? sum : MinusInfinity(), lane};
  }
  unsigned kept = 0;
  for (int i = 0; i < shape.topk_groups && i < shape.groups; ++i) {
    const int group = WarpBest(mine).id;
    kept |= 1u << group;
    if (group == lane) mine.id = -1;
  }
  for (int e = lane; e < shape.experts; e += kWarpThreads) {
    if (!(kept >> (e / size) & 1)) choice[e] = MinusInfinity();
  }
}

KT_KERNEL void RouterTopkKernel(GlobalPointer<const float> logits,
                                GlobalPointer<const float> correction_bias,
                                GlobalPointer<int32_t> ids, GlobalPointer<float> weights,
                                RouterShape shape) {
  KT_SHARED(float, score, kRouterExpertsMax);
  KT_SHARED(float, choice, kRouterExpertsMax);
  const int lane = threadIdx.x;
  Scores(logits + blockIdx.x * shape.logits_stride, shape, score);
  for (int e = lane; e < shape.experts; e += kWarpThreads) {
    const float c = correction_bias ? score[e] + correction_bias[e] : score[e];
    choice[e] = c == c ? c : MinusInfinity();
  }
  if (shape.groups > 1) DropGroups(shape, choice);

  // Lane i keeps the i-th choice.
  Candidate chosen = {0, -1};
  unsigned taken = 0;  // bit i: the lane's i-th expert
  static_assert(kRouterExpertsMax <= 32 * kWarpThreads);
  for (int k = 0; k < shape.top_k; ++k) {
    Candidate best = {0, -1};
    for (int e = lane, i = 0; e < shape.experts; e += kWarpThreads, ++i) {
      const Candidate candidate = {choice[e], e};
      if (!(taken >> i & 1) && Better(candidate, best)) best = candidate;
    }
    best = WarpBest(best);
    if (best.id % kWarpThreads == lane) taken |= 1u << (best.id / kWarpThreads);
    if (k == lane) chosen = best;
  }

  // Rank by score and add up in that order, as the host does.
  __syncwarp();
  float s = 0;
  if (lane < shape.top_k) s = score[chosen.id];
  chosen.value = s == s ? s : MinusInfinity();
  int rank = 0;
  for (int i = 0; i < shape.top_k; ++i) {
    const Candidate other = {__shfl_sync(kFullWarp, chosen.value, i),
                             __shfl_sync(kFullWarp, chosen.id, i)};
    rank += Better(other, chosen) ? 1 : 0;
  }
  float sum = 0;
  for (int i = 0; i < shape.top_k; ++i) {
    for (int j = 0; j < shape.top_k; ++j) {
      const float value = __shfl_sync(kFullWarp, s, j);
      if (__shfl_sync(kFullWarp, rank, j) == i) sum += value;
    }
  }
  if (lane < shape.top_k) {
    const int64_t at = int64_t{blockIdx.x} * shape.top_k + rank;
    ids[at] = chosen.id;
    weights[at] = s / (shape.normalize ? sum + 1e-20f : 1.0f) * shape.scaling_factor;
  }
}

}  // namespace

absl::Status RouterTopk(const RouterTopkArgs& a, cudaStream_t stream) {
  if (a.tokens == 0) return absl::OkStatus();
  if (a.experts < 1 || a.experts > kRouterExpertsMax)
    return absl::InvalidArgumentError("router_topk: experts is outside [1, 1024]");
  if (a.top_k < 1 || a.top_k > kRouterLanes || a.top_k > a.experts) {
    return absl::InvalidArgumentError("router_topk: top_k is outside [1, min(32, experts)]");
  }
  if (a.groups < 1 || a.groups > kRouterLanes || a.experts % a.groups != 0) {
    return absl::InvalidArgumentError(
        "router_topk: groups is outside [1, 32] or does not divide experts");
  }
  const RouterShape shape = {a.logits_stride, a.experts, a.top_k,     a.groups,
                             a.topk_groups,   a.sigmoid, a.normalize, a.scaling_factor};
  return Launch("router_topk", a.tokens, kWarpThreads, stream, RouterTopkKernel, a.logits,
                a.correction_bias, a.ids, a.weights, shape);
}

}  // namespace kt::cuda
