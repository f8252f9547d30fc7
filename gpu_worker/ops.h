// SPDX-License-Identifier: Apache-2.0
// The operations of the forward pass on raw views of device memory. Written once against this;
// `host` implements it on the vector kernels of kernels/cpu.
//
// Types    "activation" is bf16 or fp32 as the device was made; all arithmetic is fp32; pointers
// are device memory unless said otherwise Order    all on the default stream of the device, in
// order of the calls Bits     a row's result does not depend on the other rows of a call
// (docs/architecture.md, determinism)
#ifndef KT_GPU_WORKER_OPS_H_
#define KT_GPU_WORKER_OPS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "kernels/cpu/expert_ffn/moe_ffn.h"
#include "kernels/cpu/sampling/sampling.h"

namespace kt {

// A packed weight [n, k] (docs/formats/packed_expert.md) and its optional bias [n].
struct LinearWeight {
  const bf16* packed = nullptr;
  const float* bias = nullptr;
  int n = 0;
  int k = 0;
};

// One layer's cache: keys and values of all blocks, in the layout of kernels/cpu/attention.
struct KvLayer {
  void* k = nullptr;
  void* v = nullptr;
};

// One sequence of a step, as attention sees it. Host memory.
struct SequenceView {
  int first_row = 0;  // in the step's rows
  int tokens = 0;
  int start_position = 0;
  const int32_t* block_table = nullptr;  // device memory
  int state_source = 0;                  // slot, from 1; 0: the zero state, or a model without
  int state_target = 0;                  // slot; 0: a model without
};

// One draw, one log-probability, or both, from one row of logits. Host memory.
struct SampleJob {
  int row = 0;
  bool draw = false;  // `args` is filled but for its logits
  SamplingArgs args;
  bool logprobs = false;
  int32_t logprob_of = -1;  // with draw: of the drawn token instead
  int top_logprobs = 0;

  int32_t token = -1;  // result of the draw
  SampleStatus status = SampleStatus::kOk;
  float logprob = 0;
  std::vector<ScoredToken> top;  // descending
};

class Ops {
 public:
  virtual ~Ops() = default;
  virtual int activation_bytes() const = 0;

  // out [tokens, k] = rows ids[t] of the table.
  virtual void Embed(const LinearWeight& table, const int32_t* ids, int tokens, void* out) = 0;
  // y [rows, n] = RMS norm of x [rows, n] with weight [n]; y may be x. Rows are adjacent.
  virtual void RmsNorm(const void* x, const float* weight, float eps, int rows, int n, void* y) = 0;
  // y [tokens, n] activation.
  virtual void Linear(const LinearWeight& w, const void* x, int tokens, void* y) = 0;
  // y [tokens, n] fp32.
  virtual void LinearF32(const LinearWeight& w, const void* x, int tokens, float* y) = 0;
  // cos, sin [tokens, rotary_dim / 2], shared by all layers of the step.
  virtual void RopeTable(const RopeConfig& rope, const int32_t* positions, int tokens, float* cos,
                         float* sin) = 0;
  virtual void ApplyRope(const RopeConfig& rope, const float* cos, const float* sin, void* x,
                         int tokens, int heads, int head_dim) = 0;
  // k, v [rows, kv_heads, head_dim] into the blocks of their sequences.
  virtual void KvWrite(const AttentionConfig& a, const KvLayer& cache, const void* k, const void* v,
                       std::span<const SequenceView> sequences) = 0;
  virtual void KvCopyBlock(const AttentionConfig& a, const KvLayer& cache, int source,
                           int target) = 0;
  // out [rows, heads, head_dim]; query i of a sequence sees positions <= start_position + i.
  virtual void Attention(const AttentionConfig& a, const KvLayer& cache, const void* q,
                         std::span<const SequenceView> sequences, void* out) = 0;
  // y [tokens, n] activation = silu(gate) * up.
  virtual void SiluMul(const float* gate, const float* up, int tokens, int n, void* y) = 0;
  // logits [tokens, num_experts] fp32 of a router weight fp32 [num_experts, hidden].
  virtual void RouterLogits(const float* weight, int num_experts, int hidden, const void* x,
                            int tokens, float* logits) = 0;
  // ids, weights [tokens, top_k], by descending weight.
  virtual void RouterTopK(const MoeConfig& moe, const float* correction_bias, const float* logits,
                          int tokens, int32_t* ids, float* weights) = 0;
  // y [tokens, width] fp32: sum over the experts that `experts` holds; zeros where none.
  virtual void Experts(const MoeConfig& moe, const ExpertWeights* experts, const void* x,
                       int tokens, const int32_t* ids, const float* weights, float* y) = 0;
  // residual [tokens, n] += parts[0] + parts[1] + ..., summed in this order in fp32 and rounded
  // once.
  virtual void AddParts(void* residual, std::span<const float* const> parts, int tokens, int n) = 0;
  // Copies rows of x [_, n] to y [count, n]: row indices in host memory.
  virtual void GatherRows(const void* x, std::span<const int> rows, int n, void* y) = 0;
  // For tests: activation values as fp32 in host memory.
  virtual void ReadRows(const void* x, int64_t values, float* out) = 0;
  // Does the jobs on logits [rows, vocab] fp32; results are in the jobs (host memory).
  virtual void Sample(const float* logits, int vocab, std::span<SampleJob> jobs) = 0;
};

}  // namespace kt

#endif  // KT_GPU_WORKER_OPS_H_
