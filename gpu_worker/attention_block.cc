// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/attention_block.h"

#include <algorithm>

#include "common/base/status.h"

namespace kt {
namespace {

constexpr size_t kAlign = 256;

size_t Align(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Widths of the rows of a layer's buffers, all in use at once.
struct Widths {
  int activations = 0;
  int pieces = 0;  // how many buffers they make
  int widest = 0;
  int floats = 0;

  void Add(int width) {
    activations += width;
    widest = std::max(widest, width);
    ++pieces;
  }
};

Widths WidthsOf(const ModelConfig& c, const AttentionConfig& a) {
  Widths w;
  switch (a.kind) {
    case AttentionKind::kGqa: {
      int q = a.num_heads * a.head_dim, kv = a.num_kv_heads * a.head_dim;
      if (a.output_gate) w.Add(2 * q);
      for (int width : {q, q, kv, kv}) w.Add(width);
      if (a.qk_norm == QkNorm::kFullWidth) {
        w.floats = 2;
        ++w.pieces;
      }
      break;
    }
    case AttentionKind::kMla:
      w.Add(a.q_lora_rank);
      w.Add(a.num_heads * (a.nope_dim + a.rope_dim));
      w.Add(a.kv_lora_rank + a.rope_dim);
      w.Add(a.kv_lora_rank);
      w.Add(a.num_heads * a.v_head_dim);
      if (a.indexer) {
        const IndexerConfig& ix = c.indexers[static_cast<size_t>(*a.indexer)];
        w.Add(ix.num_heads * ix.head_dim);
        w.Add(ix.head_dim);
        w.floats = ix.num_heads;
        ++w.pieces;
      }
      break;
    case AttentionKind::kDeltaNet: {
      int keys = a.key_heads * a.key_dim, values = a.value_heads * a.value_dim;
      for (int width : {2 * keys + 2 * values, values, 2 * a.value_heads, a.value_heads, values})
        w.Add(width);
      break;
    }
  }
  return w;
}

size_t LayerBytes(const ModelConfig& c, int tokens_max, int activation_bytes) {
  size_t bytes = 0;
  for (const AttentionConfig& a : c.attentions) {
    Widths w = WidthsOf(c, a);
    size_t row = static_cast<size_t>(w.activations) * static_cast<size_t>(activation_bytes) +
                 static_cast<size_t>(w.floats) * sizeof(float);
    bytes = std::max(
        bytes, row * static_cast<size_t>(tokens_max) + static_cast<size_t>(w.pieces) * kAlign);
  }
  return bytes;
}

int TopKMax(const ModelConfig& c) {
  int top_k = 0;
  for (const IndexerConfig& ix : c.indexers) top_k = std::max(top_k, ix.top_k);
  return top_k;
}

}  // namespace

int WidestProjection(const ModelConfig& c) {
  int widest = 0;
  for (const AttentionConfig& a : c.attentions) widest = std::max(widest, WidthsOf(c, a).widest);
  return widest;
}

class AttentionBlock::Carver {
 public:
  Carver(uint8_t* next, int tokens, int activation_bytes)
      : next_(next), tokens_(tokens), activation_bytes_(activation_bytes) {}
  void* Rows(int width) { return Take(width, activation_bytes_); }
  float* Floats(int width) { return static_cast<float*>(Take(width, sizeof(float))); }

 private:
  void* Take(int width, size_t bytes) {
    uint8_t* p = next_;
    next_ += Align(static_cast<size_t>(width) * static_cast<size_t>(tokens_) * bytes);
    return p;
  }
  uint8_t* next_;
  const int tokens_;
  const size_t activation_bytes_;
};

size_t AttentionBlock::WorkspaceBytes(const ModelConfig& c, int tokens_max, int activation_bytes) {
  const auto rows = static_cast<size_t>(tokens_max);
  size_t bytes = Align(LayerBytes(c, tokens_max, activation_bytes));
  for (const RopeConfig& r : c.ropes)
    bytes += 2 * Align(static_cast<size_t>(r.rotary_dim / 2) * rows * sizeof(float));
  return bytes + Align(static_cast<size_t>(TopKMax(c)) * rows * sizeof(int32_t));
}

absl::StatusOr<AttentionBlock> AttentionBlock::Create(const Parts& parts) {
  const ModelConfig& c = *parts.config;
  const auto rows = static_cast<size_t>(parts.tokens_max);
  AttentionBlock block;
  block.p_ = parts;
  int ab = parts.ops->activation_bytes();
  KT_ASSIGN_OR_RETURN(block.memory_,
                      parts.device->Allocate(WorkspaceBytes(c, parts.tokens_max, ab),
                                             "attention workspace (--chunked-prefill-size)"));
  uint8_t* next = block.memory_.As<uint8_t>();
  auto take = [&](size_t bytes) {
    uint8_t* p = next;
    next += Align(bytes);
    return p;
  };
  block.workspace_ = take(LayerBytes(c, parts.tokens_max, ab));
  for (const RopeConfig& r : c.ropes) {
    size_t bytes = static_cast<size_t>(r.rotary_dim / 2) * rows * sizeof(float);
    block.cos_.push_back(reinterpret_cast<float*>(take(bytes)));
    block.sin_.push_back(reinterpret_cast<float*>(take(bytes)));
  }
  block.selection_ =
      reinterpret_cast<int32_t*>(take(static_cast<size_t>(TopKMax(c)) * rows * sizeof(int32_t)));
  return block;
}

void AttentionBlock::BeginStep(const StepInput& input) {
  for (size_t r = 0; r < p_.config->ropes.size(); ++r)
    p_.ops->RopeTable(p_.config->ropes[r], input.positions(), input.tokens(), cos_[r], sin_[r]);
}

absl::Status AttentionBlock::Run(size_t layer, const void* x, const StepInput& input,
                                 Collective* group, const SelectionTap& tap, float* out) {
  const ModelConfig& c = *p_.config;
  const AttentionConfig& a = c.attentions[static_cast<size_t>(c.layers[layer].attention)];
  Carver carver(workspace_, input.tokens(), p_.ops->activation_bytes());
  switch (a.kind) {
    case AttentionKind::kGqa:
      return Gqa(a, layer, x, input, group, carver, out);
    case AttentionKind::kMla:
      Latent(a, layer, x, input, tap, carver, out);
      break;
    case AttentionKind::kDeltaNet:
      DeltaNet(a, layer, x, input, carver, out);
      break;
  }
  return absl::OkStatus();
}

void AttentionBlock::Rope(std::optional<int> rope, const HeadsView& x, int tokens, int heads) {
  if (!rope) return;
  auto r = static_cast<size_t>(*rope);
  p_.ops->ApplyRope(p_.config->ropes[r], cos_[r], sin_[r], x, tokens, heads);
}

// Each rank holds some heads of a vector that is normed as a whole. Key heads that several ranks
// hold count several times in both the sum and the width.
absl::Status AttentionBlock::FullWidthNorm(const AttentionConfig& a, const AttentionWeights& w,
                                           int tokens, Collective* group, Carver& carver, void* q,
                                           void* k) {
  const float eps = p_.config->rms_norm_eps;
  const int q_width = a.num_heads * a.head_dim, kv_width = a.num_kv_heads * a.head_dim;
  if (group == nullptr) {
    p_.ops->RmsNorm(q, q_width, w.q_norm, eps, tokens, q_width, q, q_width);
    p_.ops->RmsNorm(k, kv_width, w.k_norm, eps, tokens, kv_width, k, kv_width);
    return absl::OkStatus();
  }
  float* q_sums = carver.Floats(2);
  float* k_sums = q_sums + tokens;
  p_.ops->SquareSums(q, tokens, q_width, q_sums);
  p_.ops->SquareSums(k, tokens, kv_width, k_sums);
  KT_RETURN_IF_ERROR(group->AllReduce(q_sums, 2 * tokens));
  p_.ops->RmsNormPart(q, q_sums, q_width * group->size(), w.q_norm, eps, tokens, q_width);
  p_.ops->RmsNormPart(k, k_sums, kv_width * group->size(), w.k_norm, eps, tokens, kv_width);
  return absl::OkStatus();
}

absl::Status AttentionBlock::Gqa(const AttentionConfig& a, size_t layer, const void* x,
                                 const StepInput& input, Collective* group, Carver& carver,
                                 float* out) {
  const AttentionWeights& w = p_.dense->layers[layer].attention;
  const float eps = p_.config->rms_norm_eps;
  const int tokens = input.tokens(), d = a.head_dim;
  const int q_width = a.num_heads * d, kv_width = a.num_kv_heads * d;
  void* q = carver.Rows(q_width);
  void* k = carver.Rows(kv_width);
  void* v = carver.Rows(kv_width);
  void* attended = carver.Rows(q_width);
  HeadsView gate;
  if (a.output_gate) {
    // Per head [query | gate].
    auto* both = static_cast<uint8_t*>(carver.Rows(2 * q_width));
    p_.ops->Linear(w.q, x, tokens, both);
    p_.ops->CopyHeads({both, 2 * q_width, 2 * d}, tokens, a.num_heads, d, q);
    gate = {both + d * p_.ops->activation_bytes(), 2 * q_width, 2 * d};
  } else {
    p_.ops->Linear(w.q, x, tokens, q);
  }
  p_.ops->Linear(w.k, x, tokens, k);
  p_.ops->Linear(w.v, x, tokens, v);
  switch (a.qk_norm) {
    case QkNorm::kNone:
      break;
    case QkNorm::kPerHead:
      p_.ops->RmsNorm(q, d, w.q_norm, eps, tokens * a.num_heads, d, q, d);
      p_.ops->RmsNorm(k, d, w.k_norm, eps, tokens * a.num_kv_heads, d, k, d);
      break;
    case QkNorm::kFullWidth:
      KT_RETURN_IF_ERROR(FullWidthNorm(a, w, tokens, group, carver, q, k));
      break;
  }
  Rope(a.rope, {q, q_width, d}, tokens, a.num_heads);
  Rope(a.rope, {k, kv_width, d}, tokens, a.num_kv_heads);
  const LayerCache& cache = p_.cache->layer(layer);
  p_.ops->KvWrite(a, cache, k, v, input.sequences());
  p_.ops->Attention(a, cache, w.sinks, q, input.sequences(), attended);
  if (a.output_gate) p_.ops->SigmoidMul(attended, gate, tokens, a.num_heads, d);
  p_.ops->LinearF32(w.o, attended, tokens, out);
  return absl::OkStatus();
}

void AttentionBlock::Latent(const AttentionConfig& a, size_t layer, const void* x,
                            const StepInput& input, const SelectionTap& tap, Carver& carver,
                            float* out) {
  const AttentionWeights& w = p_.dense->layers[layer].attention;
  const int tokens = input.tokens(), ab = p_.ops->activation_bytes();
  const int head_width = a.nope_dim + a.rope_dim, q_width = a.num_heads * head_width;
  const int kv_width = a.kv_lora_rank + a.rope_dim;
  void* q = carver.Rows(q_width);
  const void* q_latent = x;
  if (a.q_lora_rank > 0) {
    void* q_a = carver.Rows(a.q_lora_rank);
    p_.ops->Linear(w.q_a, x, tokens, q_a);
    p_.ops->RmsNorm(q_a, a.q_lora_rank, w.q_a_norm, a.latent_eps, tokens, a.q_lora_rank, q_a,
                    a.q_lora_rank);
    p_.ops->Linear(w.q_b, q_a, tokens, q);
    q_latent = q_a;
  } else {
    p_.ops->Linear(w.q, x, tokens, q);
  }
  auto* kv = static_cast<uint8_t*>(carver.Rows(kv_width));
  void* c = carver.Rows(a.kv_lora_rank);
  p_.ops->Linear(w.kv_a, x, tokens, kv);
  p_.ops->RmsNorm(kv, kv_width, w.kv_a_norm, a.latent_eps, tokens, a.kv_lora_rank, c,
                  a.kv_lora_rank);
  uint8_t* k_rope = kv + a.kv_lora_rank * ab;
  Rope(a.rope, {static_cast<uint8_t*>(q) + a.nope_dim * ab, q_width, head_width}, tokens,
       a.num_heads);
  Rope(a.rope, {k_rope, kv_width, a.rope_dim}, tokens, 1);
  const LayerCache& cache = p_.cache->layer(layer);
  p_.ops->LatentWrite(a, cache, c, k_rope, kv_width, input.sequences());

  const int32_t* selection = nullptr;
  int top_k = 0;
  if (a.indexer) {
    const IndexerConfig& ix = p_.config->indexers[static_cast<size_t>(*a.indexer)];
    if (!p_.config->layers[layer].shares_selection) {
      Select(a, ix, layer, x, q_latent, input, carver);
      if (tap) tap(static_cast<int>(layer), selection_, ix.top_k);
    }
    selection = selection_;
    top_k = ix.top_k;
  }
  void* attended = carver.Rows(a.num_heads * a.v_head_dim);
  p_.ops->LatentAttention(a, cache, {w.key_up, w.value_up, w.expand}, q, selection, top_k,
                          input.sequences(), attended);
  p_.ops->LinearF32(w.o, attended, tokens, out);
}

void AttentionBlock::Select(const AttentionConfig& a, const IndexerConfig& ix, size_t layer,
                            const void* x, const void* q_latent, const StepInput& input,
                            Carver& carver) {
  const AttentionWeights& w = p_.dense->layers[layer].attention;
  const int tokens = input.tokens(), width = ix.num_heads * ix.head_dim;
  void* q = carver.Rows(width);
  void* k = carver.Rows(ix.head_dim);
  float* head_weights = carver.Floats(ix.num_heads);
  p_.ops->Linear(w.index_q, q_latent, tokens, q);
  p_.ops->Linear(w.index_k, x, tokens, k);
  p_.ops->LayerNorm(k, w.index_k_norm, w.index_k_norm_bias, ix.norm_eps, tokens, ix.head_dim, k);
  Rope(ix.rope, {q, width, ix.head_dim}, tokens, ix.num_heads);
  Rope(ix.rope, {k, ix.head_dim, ix.head_dim}, tokens, 1);
  if (p_.fp8_index_keys) {
    p_.ops->IndexQuantize(ix, q, tokens * ix.num_heads);
    p_.ops->IndexQuantize(ix, k, tokens);
  }
  p_.ops->LinearF32(w.index_weights, x, tokens, head_weights);
  const LayerCache& cache = p_.cache->layer(layer);
  p_.ops->IndexWrite(ix, cache, k, input.sequences());
  p_.ops->IndexSelect(ix, cache, q, head_weights, input.sequences(), selection_);
}

void AttentionBlock::DeltaNet(const AttentionConfig& a, size_t layer, const void* x,
                              const StepInput& input, Carver& carver, float* out) {
  const AttentionWeights& w = p_.dense->layers[layer].attention;
  const int tokens = input.tokens();
  void* qkv = carver.Rows(w.delta_qkv.n);
  void* b = carver.Rows(w.delta_b.n);
  void *z = nullptr, *alpha = nullptr;
  p_.ops->Linear(w.delta_qkv, x, tokens, qkv);
  p_.ops->Linear(w.delta_b, x, tokens, b);
  if (!a.grouped_projections) {
    z = carver.Rows(w.delta_z.n);
    alpha = carver.Rows(w.delta_a.n);
    p_.ops->Linear(w.delta_z, x, tokens, z);
    p_.ops->Linear(w.delta_a, x, tokens, alpha);
  }
  void* attended = carver.Rows(a.value_heads * a.value_dim);
  p_.ops->DeltaNet(a, p_.cache->layer(layer), w.delta, p_.config->rms_norm_eps, qkv, z, b, alpha,
                   input.sequences(), attended);
  p_.ops->LinearF32(w.o, attended, tokens, out);
}

}  // namespace kt
