// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/ops_host.h"

#include <algorithm>
#include <cstring>

#include "common/base/status.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/norm/norm.h"
#include "kernels/cpu/rope/rope.h"
#include "kernels/cpu/router/router.h"

namespace kt {
namespace {

constexpr int kExpertTokensPerPass = 256;
// Below these sizes handing work to other threads costs more than it saves.
constexpr int64_t kElementsPerTask = 16384;
constexpr int64_t kRouterWorkPerTask = 1 << 18;

size_t Align(size_t x) { return (x + 255) / 256 * 256; }

struct ScratchSizes {
  ScratchSizes(const HostOpsOptions& o, const ModelConfig& c, int threads) {
    int widest = 0;
    for (const AttentionConfig& a : c.attentions) {
      attention = std::max(attention,
                           Align(AttentionScratchBytes(a.num_heads, a.num_kv_heads, a.head_dim)));
      widest = std::max(widest, a.num_heads * a.head_dim);
    }
    linear = Align(static_cast<size_t>(o.tokens_max) * static_cast<size_t>(widest) * 4);
    for (const MoeConfig& m : c.moes)
      experts = std::max(experts, Align(FfnOf(m, o.isa).ScratchBytes(threads)));
    sample = Align(SampleScratchBytes(c.vocab));
    total = static_cast<size_t>(threads) * (attention + sample) + linear + experts;
  }
  static MoeFfn FfnOf(const MoeConfig& m, Isa isa) {
    return MoeFfn(MoeShape{m.width, m.intermediate, m.num_experts, m.top_k}, isa,
                  kExpertTokensPerPass);
  }
  size_t attention = 0, sample = 0, linear = 0, experts = 0, total = 0;
};

class HostOps final : public Ops {
 public:
  HostOps(const HostOpsOptions& o, const ScratchSizes& sizes, DeviceBuffer scratch,
          Parallel& parallel)
      : o_(o),
        sizes_(sizes),
        parallel_(parallel),
        gemm_(SelectGemm(o.isa)),
        scratch_(std::move(scratch)) {
    uint8_t* p = scratch_.As<uint8_t>();
    attention_scratch_ = p;
    p += static_cast<size_t>(parallel.threads()) * sizes.attention;
    sample_scratch_ = p;
    p += static_cast<size_t>(parallel.threads()) * sizes.sample;
    linear_scratch_ = reinterpret_cast<float*>(p);
    expert_scratch_ = p + sizes.linear;
  }

  int activation_bytes() const override { return o_.bf16 ? 2 : 4; }

  void Embed(const LinearWeight& table, const int32_t* ids, int tokens, void* out) override {
    for (int t = 0; t < tokens; ++t) {
      if (o_.bf16) {
        UnpackRow(table.packed, table.n, table.k, ids[t],
                  static_cast<bf16*>(out) + int64_t{t} * table.k);
      } else {
        UnpackRow(table.packed, table.n, table.k, ids[t],
                  static_cast<float*>(out) + int64_t{t} * table.k);
      }
    }
  }

  void RmsNorm(const void* x, const float* weight, float eps, int rows, int n, void* y) override {
    Split(rows, n, [&](int first, int count) {
      kt::RmsNorm(o_.isa, {.x = At(x, int64_t{first} * n),
                           .x_stride = n,
                           .y = At(y, int64_t{first} * n),
                           .y_stride = n,
                           .weight = weight,
                           .rows = count,
                           .n = n,
                           .eps = eps,
                           .is_bf16 = o_.bf16});
    });
  }

  void LinearF32(const LinearWeight& w, const void* x, int tokens, float* y) override {
    Multiply(w, x, tokens, y);
    if (w.bias != nullptr) Convert(w, y, tokens, y, false);
  }

  void Linear(const LinearWeight& w, const void* x, int tokens, void* y) override {
    if (!o_.bf16) return LinearF32(w, x, tokens, static_cast<float*>(y));
    Multiply(w, x, tokens, linear_scratch_);
    Convert(w, linear_scratch_, tokens, y, true);
  }

  void RopeTable(const RopeConfig& rope, const int32_t* positions, int tokens, float* cos,
                 float* sin) override {
    kt::RopeTable(positions, tokens, rope.inv_freq.data(), rope.rotary_dim / 2, rope.cos_sin_scale,
                  cos, sin);
  }

  void ApplyRope(const RopeConfig& rope, const float* cos, const float* sin, void* x, int tokens,
                 int heads, int head_dim) override {
    int width = heads * head_dim, half = rope.rotary_dim / 2;
    Split(tokens, width, [&](int first, int count) {
      kt::ApplyRope(o_.isa, {.x = At(x, int64_t{first} * width),
                             .token_stride = width,
                             .cos = cos + int64_t{first} * half,
                             .sin = sin + int64_t{first} * half,
                             .tokens = count,
                             .heads = heads,
                             .head_stride = head_dim,
                             .rotary_dim = rope.rotary_dim,
                             .interleaved = rope.interleaved,
                             .is_bf16 = o_.bf16});
    });
  }

  void KvWrite(const AttentionConfig& a, const KvLayer& cache, const void* k, const void* v,
               std::span<const SequenceView> sequences) override {
    int64_t width = int64_t{a.num_kv_heads} * a.head_dim;
    for (const SequenceView& s : sequences) {
      kt::KvWrite({.cache = CacheOf(a, cache),
                   .k = At(k, s.first_row * width),
                   .k_stride = width,
                   .v = At(v, s.first_row * width),
                   .v_stride = width,
                   .block_table = s.block_table,
                   .start_position = s.start_position,
                   .tokens = s.tokens});
    }
  }

  void KvCopyBlock(const AttentionConfig& a, const KvLayer& cache, int source,
                   int target) override {
    BlockCopy(CacheOf(a, cache), source, target);
  }

  void Attention(const AttentionConfig& a, const KvLayer& cache, const void* q,
                 std::span<const SequenceView> sequences, void* out) override {
    int64_t width = int64_t{a.num_heads} * a.head_dim;
    work_.clear();
    int tasks = 0;
    for (const SequenceView& s : sequences) {
      AttentionArgs args{.q = At(q, s.first_row * width),
                         .q_stride = width,
                         .out = At(out, s.first_row * width),
                         .out_stride = width,
                         .cache = CacheOf(a, cache),
                         .block_table = s.block_table,
                         .start_position = s.start_position,
                         .tokens = s.tokens,
                         .heads = a.num_heads,
                         .scale = a.scale};
      work_.push_back({args, tasks});
      tasks += AttentionTasks(args);
    }
    parallel_.Run(tasks, [&](int task, int thread) {
      auto after = std::upper_bound(work_.begin(), work_.end(), task,
                                    [](int t, const AttentionWork& w) { return t < w.first_task; });
      const AttentionWork& w = *std::prev(after);
      AttentionTask(o_.isa, w.args, task - w.first_task,
                    attention_scratch_ + static_cast<size_t>(thread) * sizes_.attention);
    });
  }

  void SiluMul(const float* gate, const float* up, int tokens, int n, void* y) override {
    Split(tokens, n, [&](int first, int count) {
      int64_t at = int64_t{first} * n;
      kt::SiluMul(o_.isa, {.gate = gate + at,
                           .up = up + at,
                           .stride = n,
                           .out = At(y, at),
                           .out_stride = n,
                           .rows = count,
                           .n = n,
                           .is_bf16 = o_.bf16});
    });
  }

  void RouterLogits(const float* weight, int num_experts, int hidden, const void* x, int tokens,
                    float* logits) override {
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

  void Experts(const MoeConfig& moe, const ExpertWeights* experts, const void* x, int tokens,
               const int32_t* ids, const float* weights, float* y) override {
    ScratchSizes::FfnOf(moe, o_.isa)
        .Run({.x = x,
              .x_is_bf16 = o_.bf16,
              .tokens = tokens,
              .ids = ids,
              .weights = weights,
              .experts = experts,
              .y = y},
             expert_scratch_, parallel_);
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
  struct AttentionWork {
    AttentionArgs args;
    int first_task;
  };

  const void* At(const void* p, int64_t elements) const {
    return static_cast<const uint8_t*>(p) + elements * activation_bytes();
  }
  void* At(void* p, int64_t elements) const {
    return static_cast<uint8_t*>(p) + elements * activation_bytes();
  }

  kt::KvCache CacheOf(const AttentionConfig& a, const KvLayer& cache) const {
    return {.k = cache.k,
            .v = cache.v,
            .block_tokens = o_.block_tokens,
            .kv_heads = a.num_kv_heads,
            .head_dim = a.head_dim,
            .is_bf16 = o_.bf16};
  }

  void Multiply(const LinearWeight& w, const void* x, int tokens, float* y) {
    LinearParallel(gemm_, o_.bf16,
                   {.x = x,
                    .x_stride = w.k,
                    .tokens = tokens,
                    .w = w.packed,
                    .n = w.n,
                    .k = w.k,
                    .y = y,
                    .y_stride = w.n},
                   parallel_);
  }

  // y = x + bias, rounded if asked for.
  void Convert(const LinearWeight& w, const float* x, int tokens, void* y, bool to_bf16) {
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
  DeviceBuffer scratch_;
  uint8_t *attention_scratch_ = nullptr, *sample_scratch_ = nullptr, *expert_scratch_ = nullptr;
  float* linear_scratch_ = nullptr;
  std::vector<AttentionWork> work_;
};

}  // namespace

size_t HostOpsScratchBytes(const HostOpsOptions& options, const ModelConfig& config, int threads) {
  return ScratchSizes(options, config, threads).total;
}

absl::StatusOr<std::unique_ptr<Ops>> MakeHostOps(const HostOpsOptions& options,
                                                 const ModelConfig& config, Device& device,
                                                 Parallel& parallel) {
  if (options.block_tokens % kKeyGroup != 0) {
    return InvalidArgument("block_tokens: {} is not a multiple of {}", options.block_tokens,
                           kKeyGroup);
  }
  ScratchSizes sizes(options, config, parallel.threads());
  KT_ASSIGN_OR_RETURN(DeviceBuffer scratch, device.Allocate(sizes.total, "scratch of operations"));
  return std::unique_ptr<Ops>(
      std::make_unique<HostOps>(options, sizes, std::move(scratch), parallel));
}

}  // namespace kt
