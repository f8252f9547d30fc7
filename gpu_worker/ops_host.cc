// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/ops_host.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/status.h"
#include "gpu_worker/host_attention.h"
#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/norm/norm.h"
#include "kernels/cpu/rope/rope.h"
#include "kernels/cpu/router/router.h"
#include "worker/moe_shape.h"

namespace kt {
namespace {

// Below these sizes handing work to other threads costs more than it saves.
constexpr int64_t kElementsPerTask = 16384;
constexpr int64_t kRouterWorkPerTask = 1 << 18;

size_t Align(size_t x) { return (x + 255) / 256 * 256; }

// Rows of a product that wait in fp32 for their rounding to bf16.
constexpr int kLinearRows = 256;

MoeFfn FfnOf(const MoeConfig& m, int intermediate, const HostOpsOptions& o) {
  return MoeFfn(MoeShapeOf(m, intermediate), o.isa, std::min(kMoeTokensPerPass, o.tokens_max));
}

struct ScratchSizes {
  ScratchSizes(const HostOpsOptions& o, const ModelConfig& c, int threads) {
    linear = Align(static_cast<size_t>(std::min(o.tokens_max, kLinearRows)) *
                   static_cast<size_t>(o.linear_width) * 4);
    for (const MoeConfig& m : c.moes)
      experts = std::max(experts, Align(FfnOf(m, m.intermediate, o).ScratchBytes(threads)));
    sample = Align(SampleScratchBytes(c.vocab));
    total = static_cast<size_t>(threads) * sample + linear + experts;
  }
  size_t sample = 0, linear = 0, experts = 0, total = 0;
};

class HostOps final : public Ops {
 public:
  HostOps(const HostOpsOptions& o, const ScratchSizes& sizes, HostAttention attention,
          DeviceBuffer scratch, Parallel& parallel)
      : o_(o),
        sizes_(sizes),
        parallel_(parallel),
        gemm_(SelectGemm(o.isa)),
        attention_(std::move(attention)),
        scratch_(std::move(scratch)) {
    uint8_t* p = scratch_.As<uint8_t>();
    attention_.SetScratch(p);
    p += Align(attention_.ScratchBytes());
    sample_scratch_ = p;
    p += static_cast<size_t>(parallel.threads()) * sizes.sample;
    linear_scratch_ = reinterpret_cast<float*>(p);
    expert_scratch_ = p + sizes.linear;
  }

  int activation_bytes() const override { return o_.bf16 ? 2 : 4; }

  void Embed(const PackedMatrix& table, const int32_t* ids, int tokens, void* out) override {
    for (int t = 0; t < tokens; ++t) {
      if (o_.bf16) {
        UnpackRow(table, ids[t], static_cast<bf16*>(out) + int64_t{t} * table.k);
      } else {
        UnpackRow(table, ids[t], static_cast<float*>(out) + int64_t{t} * table.k);
      }
    }
  }

  void EmbedPart(const PackedMatrix& table, int first, const int32_t* ids, int tokens, int n,
                 float* out) override {
    for (int t = 0; t < tokens; ++t, out += n) {
      if (ids[t] >= first && ids[t] < first + table.n) {
        UnpackRow(table, ids[t] - first, out);
      } else {
        std::fill_n(out, n, 0.0f);
      }
    }
  }

  void SquareSums(const void* x, int rows, int n, float* sums) override {
    Split(rows, n, [&](int first, int count) {
      for (int r = first; r < first + count; ++r) {
        double sum = 0;
        for (int i = 0; i < n; ++i) {
          const double value = Value(x, int64_t{r} * n + i);
          sum += value * value;
        }
        sums[r] = static_cast<float>(sum);
      }
    });
  }

  void RmsNormPart(void* x, const float* sums, int width, const float* weight, float eps, int rows,
                   int n) override {
    Split(rows, n, [&](int first, int count) {
      for (int r = first; r < first + count; ++r) {
        const float scale = 1 / std::sqrt(sums[r] / static_cast<float>(width) + eps);
        for (int i = 0; i < n; ++i) {
          const int64_t at = int64_t{r} * n + i;
          const float y = Value(x, at) * scale * weight[i];
          if (o_.bf16) {
            static_cast<bf16*>(x)[at] = ToBf16(y);
          } else {
            static_cast<float*>(x)[at] = y;
          }
        }
      }
    });
  }

  void RmsNorm(const void* x, int64_t x_stride, const float* weight, float eps, int rows, int n,
               void* y, int64_t y_stride) override {
    Split(rows, n, [&](int first, int count) {
      kt::RmsNorm(o_.isa, {.x = At(x, first * x_stride),
                           .x_stride = x_stride,
                           .y = At(y, first * y_stride),
                           .y_stride = y_stride,
                           .weight = weight,
                           .rows = count,
                           .n = n,
                           .eps = eps,
                           .is_bf16 = o_.bf16});
    });
  }

  void LayerNorm(const void* x, const float* weight, const float* bias, float eps, int rows, int n,
                 void* y) override {
    kt::LayerNorm(o_.isa, {.x = x,
                           .x_stride = n,
                           .y = y,
                           .y_stride = n,
                           .weight = weight,
                           .bias = bias,
                           .rows = rows,
                           .n = n,
                           .eps = eps,
                           .is_bf16 = o_.bf16});
  }

  void LinearF32(const PackedMatrix& w, const void* x, int tokens, float* y) override {
    Multiply(w, x, tokens, y);
    if (w.bias != nullptr) Convert(w, y, tokens, y, false);
  }

  void Linear(const PackedMatrix& w, const void* x, int tokens, void* y) override {
    if (!o_.bf16) return LinearF32(w, x, tokens, static_cast<float*>(y));
    for (int first = 0; first < tokens; first += kLinearRows) {
      int count = std::min(kLinearRows, tokens - first);
      Multiply(w, At(x, int64_t{first} * w.k), count, linear_scratch_);
      Convert(w, linear_scratch_, count, At(y, int64_t{first} * w.n), true);
    }
  }

  void RopeTable(const RopeConfig& rope, const int32_t* positions, int tokens, float* cos,
                 float* sin) override {
    kt::RopeTable(positions, tokens, rope.inv_freq.data(), rope.rotary_dim / 2, rope.cos_sin_scale,
                  cos, sin);
  }

  void ApplyRope(const RopeConfig& rope, const float* cos, const float* sin, const HeadsView& x,
                 int tokens, int heads) override {
    int half = rope.rotary_dim / 2;
    Split(tokens, heads * rope.rotary_dim, [&](int first, int count) {
      kt::ApplyRope(o_.isa, {.x = At(x.data, first * x.token_stride),
                             .token_stride = x.token_stride,
                             .cos = cos + int64_t{first} * half,
                             .sin = sin + int64_t{first} * half,
                             .tokens = count,
                             .heads = heads,
                             .head_stride = x.head_stride,
                             .rotary_dim = rope.rotary_dim,
                             .interleaved = rope.interleaved,
                             .is_bf16 = o_.bf16});
    });
  }

  void CopyHeads(const HeadsView& x, int tokens, int heads, int n, void* y) override {
    size_t bytes = static_cast<size_t>(n) * static_cast<size_t>(activation_bytes());
    Split(tokens, heads * n, [&](int first, int count) {
      for (int t = first; t < first + count; ++t) {
        for (int h = 0; h < heads; ++h)
          std::memcpy(At(y, (int64_t{t} * heads + h) * n),
                      At(x.data, t * x.token_stride + h * x.head_stride), bytes);
      }
    });
  }

  void SigmoidMul(void* x, const HeadsView& gate, int tokens, int heads, int n) override {
    Split(tokens, heads * n, [&](int first, int count) {
      for (int h = 0; h < heads; ++h) {
        kt::SigmoidMul(o_.isa,
                       {.x = At(x, (int64_t{first} * heads + h) * n),
                        .x_stride = int64_t{heads} * n,
                        .gate = At(gate.data, first * gate.token_stride + h * gate.head_stride),
                        .gate_stride = gate.token_stride,
                        .rows = count,
                        .n = n,
                        .is_bf16 = o_.bf16});
      }
    });
  }

  void CopyBlock(const AttentionConfig& a, const IndexerConfig* indexer, const LayerCache& cache,
                 int source, int target) override {
    attention_.CopyBlock(a, indexer, cache, source, target);
  }
  void KvWrite(const AttentionConfig& a, const LayerCache& cache, const void* k, const void* v,
               std::span<const SequenceView> sequences) override {
    attention_.KvWrite(a, cache, k, v, sequences);
  }
  void Attention(const AttentionConfig& a, const LayerCache& cache, const float* sinks,
                 const void* q, std::span<const SequenceView> sequences, void* out) override {
    attention_.Attention(a, cache, sinks, q, sequences, out);
  }
  void LatentWrite(const AttentionConfig& a, const LayerCache& cache, const void* c,
                   const void* k_rope, int64_t k_rope_stride,
                   std::span<const SequenceView> sequences) override {
    attention_.LatentWrite(a, cache, c, k_rope, k_rope_stride, sequences);
  }
  void LatentAttention(const AttentionConfig& a, const LayerCache& cache, const LatentHeads& heads,
                       const void* q, const int32_t* selection, int top_k,
                       std::span<const SequenceView> sequences, void* out) override {
    attention_.LatentAttention(a, cache, heads, q, selection, top_k, sequences, out);
  }
  void IndexQuantize(const IndexerConfig& ix, void* x, int rows) override {
    Split(rows, ix.head_dim, [&](int first, int count) {
      kt::IndexerQuantize(o_.isa, {.x = At(x, int64_t{first} * ix.head_dim),
                                   .stride = ix.head_dim,
                                   .rows = count,
                                   .n = ix.head_dim,
                                   .hadamard = true,
                                   .is_bf16 = o_.bf16});
    });
  }
  void IndexWrite(const IndexerConfig& ix, const LayerCache& cache, const void* k,
                  std::span<const SequenceView> sequences) override {
    attention_.IndexWrite(ix, cache, k, sequences);
  }
  void IndexSelect(const IndexerConfig& ix, const LayerCache& cache, const void* q, float* w,
                   std::span<const SequenceView> sequences, int32_t* selection) override {
    attention_.IndexSelect(ix, cache, q, w, sequences, selection);
  }
  void DeltaNet(const AttentionConfig& a, const LayerCache& cache, const DeltaNetWeights& weights,
                float norm_eps, const void* qkv, const void* z, const void* b, const void* alpha,
                std::span<const SequenceView> sequences, void* out) override {
    attention_.DeltaNet(a, cache, weights, norm_eps, qkv, z, b, alpha, sequences, out);
  }

  void SiluMul(const float* gate, const float* up, int tokens, int n, void* y) override {
    Split(tokens, n, [&](int first, int count) {
      int64_t at = int64_t{first} * n;
      kt::Glu(o_.isa, {.gate = gate + at,
                       .up = up + at,
                       .stride = n,
                       .out = At(y, at),
                       .out_stride = n,
                       .rows = count,
                       .n = n,
                       .is_bf16 = o_.bf16});
    });
  }

  void RouterLogits(const float* weight, const float* bias, int num_experts, int hidden,
                    const void* x, int tokens, float* logits) override {
    // By experts for few tokens, so that decode splits too.
    int64_t work = int64_t{tokens} * num_experts * hidden;
    int parts = static_cast<int>(std::clamp<int64_t>(work / kRouterWorkPerTask, 1,
                                                     std::min(parallel_.threads(), num_experts)));
    parallel_.Run(parts, [&](int part, int) {
      int first = num_experts * part / parts, end = num_experts * (part + 1) / parts;
      kt::RouterLogits(o_.isa, {.x = x,
                                .x_stride = hidden,
                                .weight = weight + int64_t{first} * hidden,
                                .logits = logits + first,
                                .logits_stride = num_experts,
                                .tokens = tokens,
                                .experts = end - first,
                                .hidden = hidden,
                                .x_is_bf16 = o_.bf16});
    });
    if (bias == nullptr) return;
    kt::Convert(o_.isa, {.x = logits,
                         .stride = num_experts,
                         .bias = bias,
                         .out = logits,
                         .out_stride = num_experts,
                         .rows = tokens,
                         .n = num_experts});
  }

  void RouterTopK(const MoeConfig& moe, const float* correction_bias, const float* logits,
                  int tokens, int32_t* ids, float* weights) override {
    RouterTopk({.logits = logits,
                .logits_stride = moe.num_experts,
                .correction_bias = correction_bias,
                .ids = ids,
                .weights = weights,
                .tokens = tokens,
                .experts = moe.num_experts,
                .top_k = moe.top_k,
                .groups = moe.num_groups,
                .topk_groups = moe.topk_groups,
                .sigmoid = moe.score == RouterScore::kSigmoid,
                .normalize = moe.norm_topk_prob,
                .scaling_factor = moe.routed_scaling_factor});
  }

  void Experts(const MoeConfig& moe, const ExpertWeights* experts, int intermediate, const void* x,
               int tokens, const int32_t* ids, const float* weights, float* y) override {
    FfnOf(moe, intermediate, o_)
        .Run({.x = x,
              .x_is_bf16 = o_.bf16,
              .tokens = tokens,
              .ids = ids,
              .weights = weights,
              .experts = experts,
              .y = y},
             expert_scratch_, parallel_);
  }

  void AddF32(const float* x, int tokens, int n, float* y) override {
    Split(tokens, n, [&](int first, int count) {
      kt::AddParts(o_.isa, {.residual = y,
                            .parts = &x,
                            .num_parts = 1,
                            .begin = int64_t{first} * n,
                            .end = int64_t{first + count} * n,
                            .is_bf16 = false});
    });
  }

  void ScaleRows(float* y, const float* gate, int tokens, int n) override {
    kt::ScaleRows(o_.isa, {.y = y, .stride = n, .gate = gate, .rows = tokens, .n = n});
  }

  void AddParts(void* residual, std::span<const float* const> parts, int tokens, int n) override {
    Split(tokens, n, [&](int first, int count) {
      kt::AddParts(o_.isa, {.residual = residual,
                            .parts = parts.data(),
                            .num_parts = static_cast<int>(parts.size()),
                            .begin = int64_t{first} * n,
                            .end = int64_t{first + count} * n,
                            .is_bf16 = o_.bf16});
    });
  }

  void SumParts(std::span<const float* const> parts, int tokens, int n, float* y) override {
    const int64_t values = int64_t{tokens} * n;
    if (parts.empty()) return static_cast<void>(std::fill_n(y, values, 0.0f));
    if (parts[0] != y) std::copy_n(parts[0], values, y);
    if (parts.size() == 1) return;
    Split(tokens, n, [&](int first, int count) {
      for (const float* part : parts.subspan(1)) {
        for (int64_t i = int64_t{first} * n; i < int64_t{first + count} * n; ++i) y[i] += part[i];
      }
    });
  }

  void Round(const float* x, int tokens, int n, void* y) override {
    Split(tokens, n, [&](int first, int count) {
      kt::Convert(o_.isa, {.x = x + int64_t{first} * n,
                           .stride = n,
                           .out = At(y, int64_t{first} * n),
                           .out_stride = n,
                           .rows = count,
                           .n = n,
                           .is_bf16 = o_.bf16});
    });
  }

  void GatherRows(const void* x, std::span<const int> rows, int n, void* y) override {
    size_t bytes = static_cast<size_t>(n) * static_cast<size_t>(activation_bytes());
    for (size_t i = 0; i < rows.size(); ++i)
      std::memcpy(static_cast<uint8_t*>(y) + i * bytes, At(x, int64_t{rows[i]} * n), bytes);
  }

  void ReadRows(const void* x, int64_t values, float* out) override {
    if (!o_.bf16) {
      std::memcpy(out, x, static_cast<size_t>(values) * 4);
      return;
    }
    for (int64_t i = 0; i < values; ++i) out[i] = ToFloat(static_cast<const bf16*>(x)[i]);
  }

  void Sample(const float* logits, int vocab, std::span<SampleJob> jobs) override {
    parallel_.Run(static_cast<int>(jobs.size()), [&](int i, int thread) {
      SampleJob& job = jobs[static_cast<size_t>(i)];
      const float* row = logits + int64_t{job.row} * vocab;
      if (job.draw) {
        job.args.logits = row;
        job.status = kt::Sample(
            job.args, sample_scratch_ + static_cast<size_t>(thread) * sizes_.sample, &job.token);
        job.logprob_of = job.token;
      }
      if (job.status != SampleStatus::kOk || !job.logprobs) return;
      job.top.resize(static_cast<size_t>(std::min(job.top_logprobs, vocab)));
      job.status =
          TokenLogprobs(row, vocab, job.logprob_of, job.top_logprobs, &job.logprob, job.top.data());
    });
  }

 private:
  const void* At(const void* p, int64_t elements) const {
    return static_cast<const uint8_t*>(p) + elements * activation_bytes();
  }
  void* At(void* p, int64_t elements) const {
    return static_cast<uint8_t*>(p) + elements * activation_bytes();
  }

  float Value(const void* x, int64_t i) const {
    return o_.bf16 ? ToFloat(static_cast<const bf16*>(x)[i]) : static_cast<const float*>(x)[i];
  }

  void Multiply(const PackedMatrix& w, const void* x, int tokens, float* y) {
    LinearParallel(gemm_, o_.bf16,
                   {.x = x, .x_stride = w.k, .tokens = tokens, .w = w, .y = y, .y_stride = w.n},
                   parallel_);
  }

  // y = x + bias, rounded if asked for.
  void Convert(const PackedMatrix& w, const float* x, int tokens, void* y, bool to_bf16) {
    Split(tokens, w.n, [&](int first, int count) {
      int64_t at = int64_t{first} * w.n;
      kt::Convert(o_.isa, {.x = x + at,
                           .stride = w.n,
                           .bias = w.bias,
                           .out = static_cast<uint8_t*>(y) + at * (to_bf16 ? 2 : 4),
                           .out_stride = w.n,
                           .rows = count,
                           .n = w.n,
                           .is_bf16 = to_bf16});
    });
  }

  // f(first row, rows) over runs of rows worth a thread's while.
  void Split(int rows, int width, FunctionRef<void(int, int)> f) {
    int64_t elements = int64_t{rows} * width;
    int parts = static_cast<int>(
        std::clamp<int64_t>(elements / kElementsPerTask, 1, std::min(rows, parallel_.threads())));
    if (parts <= 1) return f(0, rows);
    parallel_.Run(parts, [&](int part, int) {
      int first = static_cast<int>(int64_t{rows} * part / parts),
          end = static_cast<int>(int64_t{rows} * (part + 1) / parts);
      f(first, end - first);
    });
  }

  const HostOpsOptions o_;
  const ScratchSizes sizes_;
  Parallel& parallel_;
  const GemmKernels& gemm_;
  HostAttention attention_;
  DeviceBuffer scratch_;
  uint8_t *sample_scratch_ = nullptr, *expert_scratch_ = nullptr;
  float* linear_scratch_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Ops>> MakeHostOps(const HostOpsOptions& options,
                                                 const ModelConfig& config, Device& device,
                                                 Parallel& parallel) {
  if (options.block_tokens % kKeyGroup != 0) {
    return InvalidArgument("block_tokens: {} is not a multiple of {}", options.block_tokens,
                           kKeyGroup);
  }
  ScratchSizes sizes(options, config, parallel.threads());
  HostAttention attention(options, config, parallel);
  KT_ASSIGN_OR_RETURN(
      DeviceBuffer scratch,
      device.Allocate(sizes.total + Align(attention.ScratchBytes()), "scratch of operations"));
  return std::unique_ptr<Ops>(std::make_unique<HostOps>(options, sizes, std::move(attention),
                                                        std::move(scratch), parallel));
}

}  // namespace kt
