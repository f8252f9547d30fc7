// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/dense_weights.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/weights/tensor_shard.h"
#include "worker/pack_stored.h"

namespace kt {
namespace {

// Walks the model's tensors in a fixed order. Without memory it only measures; with it, it fills.
class Placer {
 public:
  explicit Placer(const DenseWeights::Options& options) : options_(options) {}
  Placer(const DenseWeights::Options& options, uint8_t* memory, const Checkpoint* checkpoint,
         Parallel* parallel, const std::function<void(uint64_t)>* progress)
      : options_(options),
        memory_(memory),
        checkpoint_(checkpoint),
        parallel_(parallel),
        progress_(progress) {}

  PackedMatrix Linear(const StoredMatrix& stored, const StoredVector& bias = {}) {
    if (!stored) return {};
    PackedMatrix w =
        stored.more.empty() ? Part(stored.view) : Part(GatherRows(stored, memory_ != nullptr).view);
    w.bias = Vector(bias);
    Done(stored);
    return w;
  }

  // kv_b [heads * (nope + v), kv_lora]: of each head the rows of the keys, transposed, and those of
  // the values.
  void SplitHeads(const StoredMatrix& kv_b, const AttentionConfig& a, AttentionWeights& out) {
    int head_rows = a.nope_dim + a.v_head_dim;
    for (int head = 0; head < a.num_heads; ++head) {
      MatrixView rows = kv_b.view.Rows(head * head_rows, (head + 1) * head_rows);
      out.key_up.push_back(TransposedPart(rows.Rows(0, a.nope_dim)));
      out.value_up.push_back(Part(rows.Rows(a.nope_dim, head_rows)));
      if (options_.plain_latent) out.expand.push_back(Part(rows));
    }
    Done(kv_b);
  }

  const float* Vector(const StoredVector& stored, float added = 0) {
    if (!stored) return nullptr;
    auto* p = reinterpret_cast<float*>(Take(static_cast<size_t>(stored.size()) * sizeof(float)));
    if (p == nullptr) return nullptr;
    stored.Read(p);
    if (added != 0) std::for_each(p, p + stored.size(), [&](float& x) { x += added; });
    Done(*stored.tensor);
    return p;
  }

  FfnWeights Ffn(const StoredFfn& stored) {
    return {Linear(stored.gate), Linear(stored.up), Linear(stored.down)};
  }

  size_t used() const { return used_; }
  const absl::Status& status() const { return status_; }

 private:
  PackedMatrix Part(const MatrixView& view) {
    PackedMatrix w{.n = view.n, .k = view.k, .format = PackedFormatOf(view, options_.exact)};
    uint8_t* p = Take(PackedBytes(w.n, w.k, w.format));
    w.data = p;
    if (p != nullptr && !PackParallel(view, w.format, p, *parallel_)) numbers_ = false;
    return w;
  }

  // 4-bit codes have no transposed view: their values are multiplied out first.
  PackedMatrix TransposedPart(const MatrixView& view) {
    if (CodeBits(view.code) >= 8) return Part(view.Transposed());
    std::vector<float> values;
    MatrixView wide{
        .n = view.n, .k = view.k, .code = WeightCode::kF32, .code_row_stride = int64_t{view.k} * 4};
    if (memory_ != nullptr) {
      for (int r = 0; r < view.n; ++r) {
        for (int c = 0; c < view.k; ++c) values.push_back(view.At(r, c));
      }
      wide.codes = reinterpret_cast<const uint8_t*>(values.data());
    }
    return Part(wide.Transposed());
  }

  uint8_t* Take(size_t bytes) {
    size_t at = used_;
    used_ += (bytes + 255) / 256 * 256;
    return memory_ != nullptr ? memory_ + at : nullptr;
  }

  void Done(const StoredMatrix& stored) {
    if (!numbers_ && status_.ok()) status_ = NanCode(*stored.codes);
    Done(*stored.codes);
    if (stored.scales != nullptr) Done(*stored.scales);
  }
  void Done(const TensorInfo& t) {
    if (memory_ == nullptr) return;
    checkpoint_->Release(t);
    bytes_read_ += t.data.size();
    (*progress_)(bytes_read_);
  }

  const DenseWeights::Options options_;
  uint8_t* const memory_ = nullptr;
  const Checkpoint* const checkpoint_ = nullptr;
  Parallel* const parallel_ = nullptr;
  const std::function<void(uint64_t)>* const progress_ = nullptr;
  size_t used_ = 0;
  uint64_t bytes_read_ = 0;
  bool numbers_ = true;
  absl::Status status_;
};

AttentionWeights PlaceAttention(const AttentionConfig& a, const StoredLayer& s, float norm_offset,
                                Placer& p) {
  AttentionWeights w;
  w.o = p.Linear(s.o, s.o_bias);
  w.q = p.Linear(s.q, s.q_bias);
  w.k = p.Linear(s.k, s.k_bias);
  w.v = p.Linear(s.v, s.v_bias);
  w.q_norm = p.Vector(s.q_norm, norm_offset);
  w.k_norm = p.Vector(s.k_norm, norm_offset);
  w.sinks = p.Vector(s.sinks);
  w.q_a = p.Linear(s.q_a, s.q_a_bias);
  w.q_b = p.Linear(s.q_b);
  w.kv_a = p.Linear(s.kv_a, s.kv_a_bias);
  w.q_a_norm = p.Vector(s.q_a_norm, norm_offset);
  w.kv_a_norm = p.Vector(s.kv_a_norm, norm_offset);
  if (s.kv_b) p.SplitHeads(s.kv_b, a, w);
  w.index_q = p.Linear(s.index_q);
  w.index_k = p.Linear(s.index_k);
  w.index_weights = p.Linear(s.index_weights);
  w.index_k_norm = p.Vector(s.index_k_norm);
  w.index_k_norm_bias = p.Vector(s.index_k_norm_bias);
  w.delta_qkv = p.Linear(s.delta_qkv);
  w.delta_z = p.Linear(s.delta_z);
  w.delta_b = p.Linear(s.delta_b);
  w.delta_a = p.Linear(s.delta_a);
  w.delta = {.conv = p.Vector(s.conv),
             .a_log = p.Vector(s.a_log),
             .dt_bias = p.Vector(s.dt_bias),
             .gated_norm = p.Vector(s.gated_norm)};
  return w;
}

void Place(const ModelConfig& c, const StoredModel& stored, Placer& p, DenseWeights& w) {
  const float norm_offset = c.norm_adds_one ? 1 : 0;
  w.embedding = p.Linear(stored.embedding);
  w.head = c.tie_word_embeddings ? w.embedding : p.Linear(stored.lm_head);
  w.final_norm = p.Vector(stored.final_norm, norm_offset);
  for (size_t l = 0; l < c.layers.size(); ++l) {
    const StoredLayer& s = stored.layers[l];
    LayerWeights& out = w.layers.emplace_back();
    out.input_norm = p.Vector(s.input_norm, norm_offset);
    out.post_attention_norm = p.Vector(s.post_attention_norm, norm_offset);
    out.attention =
        PlaceAttention(c.attentions[static_cast<size_t>(c.layers[l].attention)], s, norm_offset, p);
    out.ffn = p.Ffn(s.ffn);
    out.router = p.Vector(s.router);
    out.router_bias = p.Vector(s.router_bias);
    out.correction_bias = p.Vector(s.correction_bias);
    out.shared_gate = p.Vector(s.shared_gate);
  }
}

}  // namespace

size_t DenseWeights::Bytes(const ModelConfig& config, const StoredModel& stored,
                           const Options& options) {
  Placer measure(options);
  DenseWeights unused;
  Place(config, stored, measure, unused);
  return measure.used();
}

absl::StatusOr<DenseWeights> DenseWeights::Load(const ModelConfig& config,
                                                const StoredModel& stored, const Options& options,
                                                const Checkpoint& checkpoint, Device& device,
                                                Parallel& parallel,
                                                const std::function<void(uint64_t)>& progress) {
  DenseWeights w;
  KT_ASSIGN_OR_RETURN(w.memory_, device.Allocate(Bytes(config, stored, options), "dense weights"));
  Placer fill(options, w.memory_.As<uint8_t>(), &checkpoint, &parallel, &progress);
  Place(config, stored, fill, w);
  KT_RETURN_IF_ERROR(fill.status());
  return w;
}

}  // namespace kt
