// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/host_attention.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/elementwise/elementwise.h"

namespace kt {
namespace {

// Rows of the step that go through latent space together: each head's matrices are read once for
// them, and their queries and outputs stay in the cache.
constexpr int kLatentRows = 64;
// Shorter pieces of a prompt stay in the absorbed form, which expands no keys.
constexpr int kPlainTokens = 32;
// Of the plain form: expanded keys and values of some heads.
constexpr size_t kPlainBytes = size_t{64} << 20;
// Scores of a block of IndexSelect, so that their room does not grow with the context.
constexpr size_t kIndexScores = size_t{1} << 20;

size_t Align(size_t x) { return (x + 255) / 256 * 256; }

}  // namespace

DeltaNetShape DeltaNetShapeOf(const AttentionConfig& a) {
  return {.key_heads = a.key_heads,
          .value_heads = a.value_heads,
          .key_dim = a.key_dim,
          .value_dim = a.value_dim,
          .conv_kernel = a.conv_kernel};
}

HostAttention::HostAttention(const HostOpsOptions& options, const ModelConfig& config,
                             Parallel& parallel)
    : o_(options),
      element_(options.bf16 ? 2 : 4),
      parallel_(parallel),
      gemm_(SelectGemm(options.isa)) {
  for (const AttentionConfig& a : config.attentions) {
    size_t bytes = 0;
    switch (a.kind) {
      case AttentionKind::kGqa:
        bytes = AttentionScratchBytes(a.num_heads, a.num_kv_heads, a.head_dim);
        break;
      case AttentionKind::kMla: {
        int widest = std::max(a.kv_lora_rank, a.v_head_dim);
        bytes = std::max(MlaScratchBytes(a.kv_lora_rank, a.rope_dim),
                         static_cast<size_t>(kLatentRows) * static_cast<size_t>(widest) * 4);
        absorbed_bytes_ =
            std::max(absorbed_bytes_,
                     Align(static_cast<size_t>(kLatentRows) * static_cast<size_t>(a.num_heads) *
                           static_cast<size_t>(2 * a.kv_lora_rank + a.rope_dim) *
                           static_cast<size_t>(element_)));
        if (o_.deterministic) break;
        const int key_dim = a.nope_dim + a.rope_dim;
        bytes = std::max({bytes, PlainAttentionScratchBytes(key_dim, a.v_head_dim),
                          static_cast<size_t>(o_.block_tokens) *
                              static_cast<size_t>(a.nope_dim + a.v_head_dim) * 4});
        plain_bytes_ = std::max(
            plain_bytes_, std::max(kPlainBytes, Align(static_cast<size_t>(o_.position_max) *
                                                      static_cast<size_t>(key_dim + a.v_head_dim) *
                                                      static_cast<size_t>(element_))));
        break;
      }
      case AttentionKind::kDeltaNet:
        bytes = DeltaNetScratchBytes(DeltaNetShapeOf(a));
        break;
    }
    thread_bytes_ = std::max(thread_bytes_, Align(bytes));
  }
  size_t scores = 0;
  for (const IndexerConfig& ix : config.indexers) {
    thread_bytes_ = std::max(thread_bytes_, Align(IndexerScratchBytes(ix.num_heads, ix.head_dim)));
    index_rows_ = static_cast<int>(
        std::clamp<size_t>(kIndexScores / static_cast<size_t>(o_.position_max), 1, kLatentRows));
    scores = Align(static_cast<size_t>(index_rows_) * static_cast<size_t>(o_.position_max) *
                   sizeof(float));
  }
  scratch_bytes_ = static_cast<size_t>(parallel.threads()) * thread_bytes_ +
                   std::max({absorbed_bytes_, plain_bytes_, scores});
}

KvCache HostAttention::CacheOf(const AttentionConfig& a, const LayerCache& cache) const {
  return {.k = cache.k,
          .v = cache.v,
          .block_tokens = o_.block_tokens,
          .kv_heads = a.num_kv_heads,
          .head_dim = a.head_dim,
          .is_bf16 = o_.bf16};
}

MlaCache HostAttention::LatentCacheOf(const AttentionConfig& a, const LayerCache& cache) const {
  return {.rows = cache.latent,
          .block_tokens = o_.block_tokens,
          .kv_lora = a.kv_lora_rank,
          .rope = a.rope_dim,
          .is_bf16 = o_.bf16};
}

MlaCache HostAttention::IndexCacheOf(const IndexerConfig& ix, const LayerCache& cache) const {
  return {.rows = cache.index,
          .block_tokens = o_.block_tokens,
          .kv_lora = ix.head_dim,
          .rope = 0,
          .is_bf16 = o_.bf16};
}

void HostAttention::CopyBlock(const AttentionConfig& a, const IndexerConfig* indexer,
                              const LayerCache& cache, int source, int target) {
  if (cache.k != nullptr) BlockCopy(CacheOf(a, cache), source, target);
  if (cache.latent != nullptr) BlockCopy(LatentCacheOf(a, cache), source, target);
  if (cache.index != nullptr) BlockCopy(IndexCacheOf(*indexer, cache), source, target);
}

template <typename Args, typename Tasks, typename Run>
void HostAttention::RunTasks(const std::vector<Args>& calls, Tasks tasks, Run run) {
  first_tasks_.assign(1, 0);
  for (const Args& args : calls) first_tasks_.push_back(first_tasks_.back() + tasks(args));
  parallel_.Run(first_tasks_.back(), [&](int task, int thread) {
    auto after = std::upper_bound(first_tasks_.begin(), first_tasks_.end(), task);
    size_t call = static_cast<size_t>(after - first_tasks_.begin()) - 1;
    run(calls[call], task - first_tasks_[call], ThreadScratch(thread));
  });
}

void HostAttention::KvWrite(const AttentionConfig& a, const LayerCache& cache, const void* k,
                            const void* v, std::span<const SequenceView> sequences) {
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

void HostAttention::Attention(const AttentionConfig& a, const LayerCache& cache, const float* sinks,
                              const void* q, std::span<const SequenceView> sequences, void* out) {
  int64_t width = int64_t{a.num_heads} * a.head_dim;
  std::vector<AttentionArgs>& calls = attention_calls_;
  calls.clear();
  for (const SequenceView& s : sequences) {
    calls.push_back({.q = At(q, s.first_row * width),
                     .q_stride = width,
                     .out = At(out, s.first_row * width),
                     .out_stride = width,
                     .cache = CacheOf(a, cache),
                     .block_table = s.block_table,
                     .start_position = s.start_position,
                     .tokens = s.tokens,
                     .heads = a.num_heads,
                     .scale = a.scale,
                     .sinks = sinks,
                     .window = a.window});
  }
  RunTasks(calls, AttentionTasks, [&](const AttentionArgs& args, int task, uint8_t* scratch) {
    AttentionTask(o_.isa, args, task, scratch);
  });
}

void HostAttention::LatentWrite(const AttentionConfig& a, const LayerCache& cache, const void* c,
                                const void* k_rope, int64_t k_rope_stride,
                                std::span<const SequenceView> sequences) {
  for (const SequenceView& s : sequences) {
    MlaWrite({.cache = LatentCacheOf(a, cache),
              .c = At(c, int64_t{s.first_row} * a.kv_lora_rank),
              .c_stride = a.kv_lora_rank,
              .k_rope = At(k_rope, s.first_row * k_rope_stride),
              .k_rope_stride = k_rope_stride,
              .block_table = s.block_table,
              .start_position = s.start_position,
              .tokens = s.tokens});
  }
}

void HostAttention::FindPieces(std::span<const SequenceView> sequences, int begin, int end) {
  pieces_.clear();
  for (const SequenceView& s : sequences) {
    int first = std::max(begin, s.first_row), last = std::min(end, s.first_row + s.tokens);
    if (first < last)
      pieces_.push_back({&s, first, last - first, s.start_position + first - s.first_row});
  }
}

void HostAttention::HeadProducts(std::span<const PackedMatrix> w, const HeadsView& x, int tokens,
                                 const HeadsView& y) {
  parallel_.Run(static_cast<int>(w.size()), [&](int head, int thread) {
    const PackedMatrix& matrix = w[static_cast<size_t>(head)];
    auto* product = reinterpret_cast<float*>(ThreadScratch(thread));
    Gemm(gemm_, o_.bf16,
         {.x = At(x.data, head * x.head_stride),
          .x_stride = x.token_stride,
          .tokens = tokens,
          .w = matrix,
          .y = product,
          .y_stride = matrix.n},
         0, Tiles(matrix.n));
    Convert(o_.isa, {.x = product,
                     .stride = matrix.n,
                     .out = At(y.data, head * y.head_stride),
                     .out_stride = y.token_stride,
                     .rows = tokens,
                     .n = matrix.n,
                     .is_bf16 = o_.bf16});
  });
}

void HostAttention::LatentAttention(const AttentionConfig& a, const LayerCache& cache,
                                    const LatentHeads& heads, const void* q,
                                    const int32_t* selection, int top_k,
                                    std::span<const SequenceView> sequences, void* out) {
  // Runs of sequences in the absorbed form, prompts by themselves in the plain one.
  int begin = 0;
  for (const SequenceView& s : sequences) {
    if (heads.expand.empty() || selection != nullptr || s.tokens < kPlainTokens) continue;
    AbsorbedAttention(a, cache, heads, q, selection, top_k, sequences, begin, s.first_row, out);
    PlainAttention(a, cache, heads, q, s, out);
    begin = s.first_row + s.tokens;
  }
  const int rows = sequences.back().first_row + sequences.back().tokens;
  AbsorbedAttention(a, cache, heads, q, selection, top_k, sequences, begin, rows, out);
}

void HostAttention::PlainAttention(const AttentionConfig& a, const LayerCache& cache,
                                   const LatentHeads& heads, const void* q, const SequenceView& s,
                                   void* out) {
  const MlaCache latent = LatentCacheOf(a, cache);
  const int keys = s.start_position + s.tokens, key_dim = a.nope_dim + a.rope_dim;
  const int64_t row_elements = MlaRowElements(a.kv_lora_rank, a.rope_dim);
  const int64_t q_width = int64_t{a.num_heads} * key_dim;
  const int64_t out_width = int64_t{a.num_heads} * a.v_head_dim;
  const size_t head_bytes = static_cast<size_t>(keys) *
                            static_cast<size_t>(key_dim + a.v_head_dim) *
                            static_cast<size_t>(element_);
  const int group = static_cast<int>(
      std::clamp<size_t>(plain_bytes_ / head_bytes, 1, static_cast<size_t>(a.num_heads)));
  for (int first = 0; first < a.num_heads; first += group) {
    const int count = std::min(group, a.num_heads - first);
    // k [keys, count, key_dim], v [keys, count, v_head_dim].
    uint8_t* k = ThreadScratch(parallel_.threads());
    uint8_t* v = k + int64_t{keys} * count * key_dim * element_;
    const int blocks = (keys + o_.block_tokens - 1) / o_.block_tokens;
    parallel_.Run(blocks * count, [&](int task, int thread) {
      const int h = task % count, position = task / count * o_.block_tokens;
      const int rows = std::min(o_.block_tokens, keys - position);
      const auto* x = static_cast<const uint8_t*>(
          At(latent.rows, s.block_table[task / count] * o_.block_tokens * row_elements));
      const PackedMatrix& w = heads.expand[static_cast<size_t>(first + h)];
      auto* product = reinterpret_cast<float*>(ThreadScratch(thread));
      Gemm(
          gemm_, o_.bf16,
          {.x = x, .x_stride = row_elements, .tokens = rows, .w = w, .y = product, .y_stride = w.n},
          0, Tiles(w.n));
      uint8_t* k_out = k + (int64_t{position} * count + h) * key_dim * element_;
      uint8_t* v_out = v + (int64_t{position} * count + h) * a.v_head_dim * element_;
      auto round = [&](const float* from, uint8_t* to, int64_t stride, int n) {
        Convert(o_.isa, {.x = from,
                         .stride = w.n,
                         .out = to,
                         .out_stride = stride,
                         .rows = rows,
                         .n = n,
                         .is_bf16 = o_.bf16});
      };
      round(product, k_out, int64_t{count} * key_dim, a.nope_dim);
      round(product + a.nope_dim, v_out, int64_t{count} * a.v_head_dim, a.v_head_dim);
      for (int r = 0; r < rows; ++r) {
        std::memcpy(k_out + (int64_t{r} * count * key_dim + a.nope_dim) * element_,
                    x + (r * row_elements + a.kv_lora_rank) * element_,
                    static_cast<size_t>(a.rope_dim) * static_cast<size_t>(element_));
      }
    });
    const PlainAttentionArgs args{
        .q = At(q, s.first_row * q_width + int64_t{first} * key_dim),
        .q_stride = q_width,
        .k = k,
        .k_stride = int64_t{count} * key_dim,
        .v = v,
        .v_stride = int64_t{count} * a.v_head_dim,
        .out = At(out, s.first_row * out_width + int64_t{first} * a.v_head_dim),
        .out_stride = out_width,
        .tokens = s.tokens,
        .keys = keys,
        .heads = count,
        .key_dim = key_dim,
        .value_dim = a.v_head_dim,
        .scale = a.scale,
        .is_bf16 = o_.bf16};
    parallel_.Run(PlainAttentionTasks(args), [&](int task, int thread) {
      PlainAttentionTask(o_.isa, args, task, ThreadScratch(thread));
    });
  }
}

void HostAttention::AbsorbedAttention(const AttentionConfig& a, const LayerCache& cache,
                                      const LatentHeads& heads, const void* q,
                                      const int32_t* selection, int top_k,
                                      std::span<const SequenceView> sequences, int first_row,
                                      int end_row, void* out) {
  const int64_t head_width = a.nope_dim + a.rope_dim, row_width = a.num_heads * head_width;
  const int64_t latent_width = a.kv_lora_rank + a.rope_dim;
  uint8_t* absorbed = ThreadScratch(parallel_.threads());
  for (int begin = first_row; begin < end_row; begin += kLatentRows) {
    const int end = std::min(end_row, begin + kLatentRows), count = end - begin;
    // Heads outermost: [heads, count, latent_width], then [heads, count, kv_lora].
    uint8_t* attended = absorbed + a.num_heads * count * latent_width * element_;
    const HeadsView query = {const_cast<void*>(At(q, begin * row_width)), row_width, head_width};
    HeadProducts(heads.key_up, query, count, {absorbed, latent_width, count * latent_width});
    for (int head = 0; head < a.num_heads; ++head) {
      for (int row = 0; row < count; ++row) {
        std::memcpy(
            absorbed + ((int64_t{head} * count + row) * latent_width + a.kv_lora_rank) * element_,
            At(q, (begin + row) * row_width + head * head_width + a.nope_dim),
            static_cast<size_t>(a.rope_dim) * static_cast<size_t>(element_));
      }
    }
    std::vector<MlaArgs>& calls = latent_calls_;
    calls.clear();
    FindPieces(sequences, begin, end);
    for (const Piece& p : pieces_) {
      int64_t row = p.first_row - begin;
      calls.push_back(
          {.q = absorbed + row * latent_width * element_,
           .q_stride = latent_width,
           .q_head_stride = count * latent_width,
           .out = attended + row * a.kv_lora_rank * element_,
           .out_stride = a.kv_lora_rank,
           .out_head_stride = int64_t{count} * a.kv_lora_rank,
           .cache = LatentCacheOf(a, cache),
           .block_table = p.sequence->block_table,
           .start_position = p.start_position,
           .tokens = p.tokens,
           .heads = a.num_heads,
           .scale = a.scale,
           .selection = selection != nullptr ? selection + int64_t{p.first_row} * top_k : nullptr,
           .top_k = top_k});
    }
    RunTasks(calls, MlaTasks, [&](const MlaArgs& args, int task, uint8_t* scratch) {
      MlaTask(o_.isa, args, task, scratch);
    });
    const int64_t out_width = int64_t{a.num_heads} * a.v_head_dim;
    HeadProducts(heads.value_up, {attended, a.kv_lora_rank, int64_t{count} * a.kv_lora_rank}, count,
                 {At(out, begin * out_width), out_width, a.v_head_dim});
  }
}

void HostAttention::IndexWrite(const IndexerConfig& ix, const LayerCache& cache, const void* k,
                               std::span<const SequenceView> sequences) {
  for (const SequenceView& s : sequences) {
    MlaWrite({.cache = IndexCacheOf(ix, cache),
              .c = At(k, int64_t{s.first_row} * ix.head_dim),
              .c_stride = ix.head_dim,
              .block_table = s.block_table,
              .start_position = s.start_position,
              .tokens = s.tokens});
  }
}

void HostAttention::IndexSelect(const IndexerConfig& ix, const LayerCache& cache, const void* q,
                                float* w, std::span<const SequenceView> sequences,
                                int32_t* selection) {
  const int64_t width = int64_t{ix.num_heads} * ix.head_dim;
  const int rows = sequences.back().first_row + sequences.back().tokens;
  for (int64_t i = 0; i < int64_t{rows} * ix.num_heads; ++i) w[i] *= ix.weight_scale;
  auto* scores = reinterpret_cast<float*>(ThreadScratch(parallel_.threads()));
  for (int begin = 0; begin < rows; begin += index_rows_) {
    std::vector<IndexerArgs>& calls = index_calls_;
    calls.clear();
    FindPieces(sequences, begin, std::min(rows, begin + index_rows_));
    for (const Piece& p : pieces_) {
      calls.push_back({.q = At(q, p.first_row * width),
                       .q_stride = width,
                       .w = w + int64_t{p.first_row} * ix.num_heads,
                       .w_stride = ix.num_heads,
                       .cache = IndexCacheOf(ix, cache),
                       .block_table = p.sequence->block_table,
                       .start_position = p.start_position,
                       .tokens = p.tokens,
                       .heads = ix.num_heads,
                       .top_k = ix.top_k,
                       .scores = scores + int64_t{p.first_row - begin} * o_.position_max,
                       .scores_stride = o_.position_max,
                       .selection = selection + int64_t{p.first_row} * ix.top_k});
    }
    RunTasks(calls, IndexerScoreTasks, [&](const IndexerArgs& args, int task, uint8_t* scratch) {
      IndexerScoreTask(o_.isa, args, task, scratch);
    });
    RunTasks(
        calls, [](const IndexerArgs& args) { return args.tokens; },
        [](const IndexerArgs& args, int token, uint8_t*) { IndexerSelect(args, token); });
  }
}

void HostAttention::DeltaNet(const AttentionConfig& a, const LayerCache& cache,
                             const DeltaNetWeights& weights, float norm_eps, const void* qkv,
                             const void* z, const void* b, const void* alpha,
                             std::span<const SequenceView> sequences, void* out) {
  const DeltaNetShape shape = DeltaNetShapeOf(a);
  const int64_t keys = int64_t{a.key_heads} * a.key_dim,
                values = int64_t{a.value_heads} * a.value_dim;
  const int64_t qkv_width = 2 * keys + values;
  std::vector<DeltaNetArgs>& calls = delta_calls_;
  calls.clear();
  for (const SequenceView& s : sequences) {
    const int64_t row = s.first_row;
    const int64_t heads = a.value_heads;
    calls.push_back(
        {.shape = shape,
         .projections =
             a.grouped_projections
                 ? GroupedProjections(shape, o_.bf16, At(qkv, row * (qkv_width + values)),
                                      qkv_width + values, At(b, row * 2 * heads), 2 * heads)
                 : SeparateProjections(shape, o_.bf16, At(qkv, row * qkv_width), qkv_width,
                                       At(z, row * values), values, At(b, row * heads), heads,
                                       At(alpha, row * heads), heads),
         .conv_weight = weights.conv,
         .a_log = weights.a_log,
         .dt_bias = weights.dt_bias,
         .norm_weight = weights.gated_norm,
         .norm_eps = norm_eps,
         .state_source =
             s.state_source > 0
                 ? cache.states + static_cast<size_t>(s.state_source - 1) * cache.state_bytes
                 : nullptr,
         .state_target = cache.states + static_cast<size_t>(s.state_target - 1) * cache.state_bytes,
         .out = At(out, row * values),
         .out_stride = values,
         .tokens = s.tokens,
         .is_bf16 = o_.bf16});
  }
  RunTasks(
      calls, [](const DeltaNetArgs& args) { return DeltaNetTasks(args.shape); },
      [&](const DeltaNetArgs& args, int task, uint8_t* scratch) {
        DeltaNetTask(o_.isa, args, task, scratch);
      });
}

}  // namespace kt
