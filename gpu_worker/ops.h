// SPDX-License-Identifier: Apache-2.0
// The operations of the forward pass on raw views of device memory. Written once against this;
// `host` implements it on the vector kernels of kernels/cpu.
//
// Types    "activation" is bf16 or fp32 as the device was made; all arithmetic is fp32; pointers
// are
//          device memory unless said otherwise
// Order    all on the default stream of the device, in order of the calls
// Bits     a row's result does not depend on the other rows of a call (docs/architecture.md,
//          determinism)
#ifndef KT_GPU_WORKER_OPS_H_
#define KT_GPU_WORKER_OPS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "kernels/cpu/expert_ffn/moe_ffn.h"
#include "kernels/cpu/gemm/packed_matrix.h"
#include "kernels/cpu/sampling/sampling.h"

namespace kt {

// One layer's part of the pools (kv_pool.h); what its attention does not need is null.
struct LayerCache {
  void* k = nullptr;  // kGqa: keys and values of all blocks, as kernels/cpu/attention lays them
  void* v = nullptr;
  void* latent = nullptr;     // kMla: rows of all blocks
  void* index = nullptr;      // indexer: its keys of all blocks
  uint8_t* states = nullptr;  // kDeltaNet: slots 1, 2, ... of state_bytes each
  size_t state_bytes = 0;
};

// One sequence of a step, as attention sees it. Host memory.
struct SequenceView {
  int first_row = 0;  // in the step's rows
  int tokens = 0;
  int start_position = 0;
  const int32_t* block_table = nullptr;  // device memory
  int state_source = 0;                  // state slot read, 0: a sequence that begins
  int state_target = 0;                  // state slot written, 0: the model has no state
};

// Rows of a buffer that holds more than them: element strides between tokens and between heads.
struct HeadsView {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// Per head: key_up [kv_lora, nope] takes a query to latent space, value_up [v_head_dim, kv_lora]
// back; expand [nope + v_head_dim, kv_lora], where the plain form may be used, gives key and value.
struct LatentHeads {
  std::span<const PackedMatrix> key_up, value_up, expand;
};

struct DeltaNetWeights {
  const float* conv = nullptr;        // [channels, conv_kernel]
  const float* a_log = nullptr;       // [value_heads]
  const float* dt_bias = nullptr;     // [value_heads]
  const float* gated_norm = nullptr;  // [value_dim]
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
  virtual void Embed(const PackedMatrix& table, const int32_t* ids, int tokens, void* out) = 0;
  // Of ranks that share a vocabulary: out [tokens, n] fp32 = rows ids[t] - first of the table,
  // zeros for ids that it does not have.
  virtual void EmbedPart(const PackedMatrix& table, int first, const int32_t* ids, int tokens,
                         int n, float* out) = 0;
  // y [tokens, n] = norm of x [tokens, n] with weight [n]; strides in elements between rows. y may
  // be x.
  virtual void RmsNorm(const void* x, int64_t x_stride, const float* weight, float eps, int rows,
                       int n, void* y, int64_t y_stride) = 0;
  // A norm of vectors that ranks share: sums [rows] of the squares of x [rows, n], and, given those
  // of the whole vectors of `width` values, the norm of x in place.
  virtual void SquareSums(const void* x, int rows, int n, float* sums) = 0;
  virtual void RmsNormPart(void* x, const float* sums, int width, const float* weight, float eps,
                           int rows, int n) = 0;
  virtual void LayerNorm(const void* x, const float* weight, const float* bias, float eps, int rows,
                         int n, void* y) = 0;
  // y [tokens, n] activation = x W^T + bias.
  virtual void Linear(const PackedMatrix& w, const void* x, int tokens, void* y) = 0;
  // y [tokens, n] fp32.
  virtual void LinearF32(const PackedMatrix& w, const void* x, int tokens, float* y) = 0;
  // cos, sin [tokens, rotary_dim / 2], shared by all layers of the step.
  virtual void RopeTable(const RopeConfig& rope, const int32_t* positions, int tokens, float* cos,
                         float* sin) = 0;
  // Turns the first rotary_dim components of every head of x.
  virtual void ApplyRope(const RopeConfig& rope, const float* cos, const float* sin,
                         const HeadsView& x, int tokens, int heads) = 0;
  // y [tokens, heads, n] adjacent = x.
  virtual void CopyHeads(const HeadsView& x, int tokens, int heads, int n, void* y) = 0;
  // x [tokens, heads, n] adjacent *= sigmoid(gate), elementwise.
  virtual void SigmoidMul(void* x, const HeadsView& gate, int tokens, int heads, int n) = 0;

  // Copies a block of every part of the layer that has blocks (copy-on-write).
  virtual void CopyBlock(const AttentionConfig& a, const IndexerConfig* indexer,
                         const LayerCache& cache, int source, int target) = 0;
  // k, v [rows, kv_heads, head_dim] into the blocks of their sequences.
  virtual void KvWrite(const AttentionConfig& a, const LayerCache& cache, const void* k,
                       const void* v, std::span<const SequenceView> sequences) = 0;
  // out [rows, heads, head_dim]; query i of a sequence sees positions <= start_position + i. sinks
  // [heads] or null.
  virtual void Attention(const AttentionConfig& a, const LayerCache& cache, const float* sinks,
                         const void* q, std::span<const SequenceView> sequences, void* out) = 0;
  // Latent rows: c [rows, kv_lora], k_rope [rows, rope] roped, with its stride.
  virtual void LatentWrite(const AttentionConfig& a, const LayerCache& cache, const void* c,
                           const void* k_rope, int64_t k_rope_stride,
                           std::span<const SequenceView> sequences) = 0;
  // out [rows, heads, v_head_dim] of q [rows, heads, nope + rope] roped. selection [rows, top_k]
  // (IndexSelect) or null: every position.
  virtual void LatentAttention(const AttentionConfig& a, const LayerCache& cache,
                               const LatentHeads& heads, const void* q, const int32_t* selection,
                               int top_k, std::span<const SequenceView> sequences, void* out) = 0;
  // Rounds rows of x [rows, head_dim] in place to what an FP8 index cache holds, behind a Hadamard
  // transform; head_dim is a power of two.
  virtual void IndexQuantize(const IndexerConfig& ix, void* x, int rows) = 0;
  // k [rows, head_dim] into the index keys' blocks.
  virtual void IndexWrite(const IndexerConfig& ix, const LayerCache& cache, const void* k,
                          std::span<const SequenceView> sequences) = 0;
  // selection [rows, top_k]: the positions each query attends to, ascending, then -1. q [rows,
  // heads, head_dim], w [rows, heads] as weights_proj gives it (scaled here, in place).
  virtual void IndexSelect(const IndexerConfig& ix, const LayerCache& cache, const void* q,
                           float* w, std::span<const SequenceView> sequences,
                           int32_t* selection) = 0;
  // out [rows, value_heads * value_dim]; every sequence's state goes from its source to its target
  // slot. qkv, z, b, a as in_proj_* give them; grouped_projections: qkv holds in_proj_qkvz, b
  // in_proj_ba.
  virtual void DeltaNet(const AttentionConfig& a, const LayerCache& cache,
                        const DeltaNetWeights& weights, float norm_eps, const void* qkv,
                        const void* z, const void* b, const void* alpha,
                        std::span<const SequenceView> sequences, void* out) = 0;

  // y [tokens, n] activation = silu(gate) * up.
  virtual void SiluMul(const float* gate, const float* up, int tokens, int n, void* y) = 0;
  // logits [tokens, num_experts] fp32 of a router weight fp32 [num_experts, hidden] and an optional
  // bias [num_experts].
  virtual void RouterLogits(const float* weight, const float* bias, int num_experts, int hidden,
                            const void* x, int tokens, float* logits) = 0;
  // ids, weights [tokens, top_k], by descending weight.
  virtual void RouterTopK(const MoeConfig& moe, const float* correction_bias, const float* logits,
                          int tokens, int32_t* ids, float* weights) = 0;
  // y [tokens, width] fp32: sum over the experts that `experts` holds; zeros where none.
  // Each has `intermediate` rows.
  virtual void Experts(const MoeConfig& moe, const ExpertWeights* experts, int intermediate,
                       const void* x, int tokens, const int32_t* ids, const float* weights,
                       float* y) = 0;
  // y [tokens, n] fp32 += x.
  virtual void AddF32(const float* x, int tokens, int n, float* y) = 0;
  // y [tokens, n] fp32: each row *= sigmoid(gate[row]).
  virtual void ScaleRows(float* y, const float* gate, int tokens, int n) = 0;
  // residual [tokens, n] += parts[0] + parts[1] + ..., summed in this order in fp32 and rounded
  // once.
  virtual void AddParts(void* residual, std::span<const float* const> parts, int tokens, int n) = 0;
  // y [tokens, n] fp32 = parts[0] + parts[1] + ..., in this order; zeros without parts. y may be
  // parts[0] and no other.
  virtual void SumParts(std::span<const float* const> parts, int tokens, int n, float* y) = 0;
  // y [tokens, n] activation = x.
  virtual void Round(const float* x, int tokens, int n, void* y) = 0;
  // Copies rows of x [_, n] to y [count, n]: row indices in host memory.
  virtual void GatherRows(const void* x, std::span<const int> rows, int n, void* y) = 0;
  // For tests: activation values as fp32 in host memory.
  virtual void ReadRows(const void* x, int64_t values, float* out) = 0;
  // Does the jobs on logits [rows, vocab] fp32; results are in the jobs (host memory).
  virtual void Sample(const float* logits, int vocab, std::span<SampleJob> jobs) = 0;
};

}  // namespace kt

#endif  // KT_GPU_WORKER_OPS_H_
